"""A map that cannot grow: the last entries put into it, each for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Recent(Generic[V]):
    """The last `limit` values by room, each for at most `ttl_s` seconds. Not thread-safe."""

    def __init__(
        self,
        limit: int,
        ttl_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limit, self._ttl_s, self._clock = limit, ttl_s, clock
        self._entries: dict[int, tuple[float, V]] = {}  # in the order of put

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, room: int, value: V) -> list[tuple[int, V]]:
        """Remember `value`; returns the entries that had to go for it."""
        self._entries.pop(room, None)
        self._entries[room] = (self._clock(), value)
        return self.expire()

    def get(self, room: int) -> V | None:
        """The value, while it is remembered."""
        found = self._entries.get(room)
        if found is None or self._clock() - found[0] > self._ttl_s:
            return None
        return found[1]

    def pop(self, room: int) -> V | None:
        """Take the value out."""
        value = self.get(room)
        self._entries.pop(room, None)
        return value

    def expire(self) -> list[tuple[int, V]]:
        """Take out what is too old or too much, oldest first."""
        gone: list[tuple[int, V]] = []
        oldest_kept = self._clock() - self._ttl_s
        for room, (since, value) in self._entries.items():
            if since >= oldest_kept and len(self._entries) - len(gone) <= self._limit:
                break
            gone.append((room, value))
        for room, _ in gone:
            del self._entries[room]
        return gone

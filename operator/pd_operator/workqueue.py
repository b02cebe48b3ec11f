"""The queue of deployments to look at: each at most once in it and at most once in work."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
from collections.abc import Callable

from pd_operator.resource import Key

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 60.0


class WorkQueue:
    """Keys with the time from which they are due. An earlier wish wins over a later one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._working: set[Key] = set()
        self._again: dict[Key, float] = {}
        """Wishes for keys in work, kept until that ends."""
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()
        self._moved_at = clock()
        """When a key was taken last."""

    def __len__(self) -> int:
        return len(self._due) + len(self._again)

    def __repr__(self) -> str:
        return f"<WorkQueue {len(self._due)} waiting, {len(self._working)} in work>"

    @property
    def lag_s(self) -> float:
        """For how long the most overdue key waits; 0 where none is due."""
        now = self._clock()
        return max((now - due for due in self._due.values() if due < now), default=0.0)

    @property
    def stuck_s(self) -> float:
        """For how long nobody has taken a key although one is due. A long queue is none that is
        stuck."""
        return min(self.lag_s, self._clock() - self._moved_at)

    def begin(self) -> None:
        """Somebody takes keys from now on; that they have waited before means nothing."""
        self._moved_at = self._clock()

    @property
    def idle(self) -> bool:
        """Nothing is in work, and nothing due."""
        return not self._working and all(due > self._clock() for due in self._due.values())

    def add(self, key: Key, after_s: float = 0.0) -> None:
        """Look at `key` after so long at the latest."""
        due = self._clock() + after_s
        if key in self._working:
            self._again[key] = min(due, self._again.get(key, due))
        elif due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))
            self._wake.set()

    async def get(self) -> Key:
        """The next key that is due; it is in work until done() or failed()."""
        while True:
            wait_s = self._next_in_s()
            if wait_s is not None and wait_s <= 0:
                _, key = heapq.heappop(self._heap)
                del self._due[key]
                self._working.add(key)
                self._moved_at = self._clock()
                return key
            self._wake.clear()
            with contextlib.suppress(TimeoutError):  # wait_for of 3.11 can lose a cancellation
                async with asyncio.timeout(wait_s):
                    await self._wake.wait()

    def _next_in_s(self) -> float | None:
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)  # an earlier wish replaced it
        return self._heap[0][0] - self._clock() if self._heap else None

    def done(self, key: Key, again_after_s: float | None = None) -> None:
        """The work is done; look again after so long, or at a wish that came meanwhile."""
        self._failures.pop(key, None)
        self._finish(key, again_after_s)

    def failed(self, key: Key) -> float:
        """The work failed; it is due again after the returned seconds, more each time."""
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        pause_s = min(FIRST_BACKOFF_S * 2.0 ** min(count, 20), LONGEST_BACKOFF_S)
        pause_s *= random.uniform(0.8, 1.2)
        if key in self._again:  # it may be the cure, but not at once: it may be our own doing
            self._again[key] = max(self._again[key], self._clock() + FIRST_BACKOFF_S)
        self._finish(key, pause_s)
        return pause_s

    def forget(self, key: Key) -> None:
        """Nothing is left of the key but a wish that came meanwhile."""
        self.done(key)

    def _finish(self, key: Key, after_s: float | None) -> None:
        self._working.discard(key)
        again = self._again.pop(key, None)
        if after_s is not None:
            self.add(key, after_s)
        if again is not None:
            self.add(key, again - self._clock())

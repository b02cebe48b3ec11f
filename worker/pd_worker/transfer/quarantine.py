"""Pages of failed rooms that a writer may still touch. Pure: the caller passes the time.

A room leaves by the writer's word (AbortAck) or because its process has certainly ended; never
because time passed. Where a write broke off, or the writer died, bytes may still be on the network:
then the room stays for the engine's settle time on top.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pd_worker.transfer.links import Link


@dataclass(slots=True, kw_only=True, eq=False)
class Held:
    """One room."""

    room: int
    link: Link
    num_pages: int
    since: float
    asked: float
    """When the writer was last asked to stop."""
    due: float = float("inf")


class Quarantine:
    """All rooms that are held."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    @property
    def num_pages(self) -> int:
        """Pages that are held."""
        return sum(held.num_pages for held in self)

    def hold(self, room: int, link: Link, num_pages: int, now: float) -> None:
        """Keep a room's pages back."""
        self._held[room] = Held(room=room, link=link, num_pages=num_pages, since=now, asked=now)

    def acknowledged(self, room: int, incarnation: str, due: float) -> None:
        """Its writer has stopped; release it at `due`."""
        held = self._held.get(room)
        if held is not None and held.link.incarnation == incarnation:
            held.due = min(held.due, due)

    def writer_ended(self, link: Link, due: float) -> None:
        """The process of a link has ended; release its rooms at `due`."""
        for held in self:
            if held.link is link:
                held.due = min(held.due, due)

    def unanswered(self, now: float, patience_s: float) -> list[Held]:
        """Rooms whose writer should be asked again; counts as asked."""
        late = [h for h in self if h.due == float("inf") and now - h.asked >= patience_s]
        for held in late:
            held.asked = now
        return late

    def release(self, now: float) -> list[int]:
        """Let go of the rooms that are due."""
        free = [held.room for held in self if held.due <= now]
        for room in free:
            del self._held[room]
        return free

"""The state of one transfer, KVPoll, and its three laws.

    in time       `advance`: Failed and Success absorb, Failed beats the rest, else the maximum
    across ranks  `agree`: the minimum
    in a table    `RoomTable`: a room is opened only by Bootstrapping and ended only by `clear`

The scheduler reads states, the control thread and the writer threads change them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pd_worker.errors import InvalidRequest
from pd_worker.transfer.recent import Recent

MAX_ROOM = 2**63 - 1
REMEMBERED_ROOMS = 16384


class KVPoll:
    """Plain integers, so that ranks can agree on them with one MIN all-reduce."""

    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


NAMES = ("Failed", "Bootstrapping", "WaitingForInput", "Transferring", "Success")
TERMINAL = (KVPoll.Failed, KVPoll.Success)


def advance(current: int, new: int) -> int:
    """The state after `new` is reported in state `current`.

    A plain maximum could never record a failure, since Failed is 0.
    """
    if current in TERMINAL:
        return current
    return KVPoll.Failed if new == KVPoll.Failed else max(current, new)


def agree(polls: Iterable[int]) -> int:
    """The state of a group of ranks: that of the last one; one failure fails all."""
    return min(polls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """State of a room, and why where it is Failed."""

    state: int
    reason: str = ""


class RoomTable:
    """States of the live rooms, and the outcome of the last cleared ones.

    Thread-safe; the lock is held only to change memory. `wake` is called after every change, from
    the thread that made it.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._lock = threading.Lock()
        self._live: dict[int, Outcome] = {}
        self._cleared: Recent[Outcome] = Recent(REMEMBERED_ROOMS)

    def __len__(self) -> int:
        return len(self._live)

    def open(self, room: int) -> None:
        """Start a room in Bootstrapping.

        Raises InvalidRequest for a number out of range, in use, or used a short while ago.
        """
        if not 1 <= room <= MAX_ROOM:
            raise InvalidRequest(f"bootstrap_room {room} is out of range", param="bootstrap_room")
        with self._lock:
            used = room in self._live or self._cleared.get(room) is not None
            if not used:
                self._live[room] = Outcome(state=KVPoll.Bootstrapping)
        if used:
            raise InvalidRequest(f"bootstrap_room {room} is taken", param="bootstrap_room")

    def update(self, room: int, new: int, reason: str = "") -> bool:
        """Report a state; True if it changed anything. A room that is not open stays so."""
        with self._lock:
            current = self._live.get(room)
            if current is None:
                return False
            state = advance(current.state, new)
            if state == current.state:
                return False
            self._live[room] = Outcome(state=state, reason=reason)
        self._wake()
        return True

    def outcome(self, room: int) -> Outcome | None:
        """Of a live or recently cleared room; None for an unknown one."""
        with self._lock:
            return self._live.get(room) or self._cleared.get(room)

    def poll(self, room: int) -> int:
        """The state; Failed for an unknown room."""
        known = self.outcome(room)
        return KVPoll.Failed if known is None else known.state

    def failure(self, room: int) -> str:
        """Why the room is Failed; empty in every other state."""
        known = self.outcome(room)
        return "" if known is None else known.reason

    def cleared(self, room: int) -> bool:
        """Whether the room is not live (any more)."""
        return room not in self._live

    def clear(self, room: int) -> None:
        """End a room; one that was not finished is remembered as Failed."""
        with self._lock:
            last = self._live.pop(room, None)
            if last is None:
                return
            if last.state not in TERMINAL:
                last = Outcome(state=KVPoll.Failed, reason="cleared before it was finished")
            self._cleared.put(room, last)

"""Prefill's memory of rooms that have no sender yet: pages published, aborts and refusals.

Bounded in number and age. Control thread only.
"""

from __future__ import annotations

from pd_worker.transfer import wire
from pd_worker.transfer.recent import Recent

MAX_ROOMS = 8192


class Rendezvous:
    """Early TransferInfos, and tombstones: rooms that will fail as soon as they have a sender."""

    def __init__(self, ttl_s: float) -> None:
        self._early: Recent[wire.TransferInfo] = Recent(MAX_ROOMS, ttl_s)
        self._tombstones: Recent[str] = Recent(MAX_ROOMS, ttl_s)

    def __len__(self) -> int:
        return len(self._early)

    def publish(self, info: wire.TransferInfo) -> list[wire.TransferInfo]:
        """Keep pages for the sender to come; returns those that had to go for them."""
        return [lost for _, lost in self._early.put(info.room, info)]

    def abort(self, abort: wire.Abort) -> None:
        """Decode gave the room up, unless the pages are another decode's."""
        info = self._early.get(abort.room)
        if info is None or info.sender == abort.sender:
            self._early.pop(abort.room)
            self._tombstones.put(abort.room, f"decode: {abort.reason}")

    def refuse(self, room: int, reason: str) -> wire.TransferInfo | None:
        """Our API refused the request; returns the pages that wait for it."""
        self._tombstones.put(room, f"prefill: {reason}")
        return self._early.pop(room)

    def refusal(self, room: int) -> str:
        """Why the room will fail; empty if it need not."""
        return self._tombstones.get(room) or ""

    def meet(self, room: int) -> tuple[wire.TransferInfo | None, str]:
        """What waits for a new sender: pages, and the reason to fail at once."""
        return self._early.pop(room), self._tombstones.pop(room) or ""

    def expire(self) -> list[wire.TransferInfo]:
        """Forget what is too old; returns pages whose request never came."""
        self._tombstones.expire()
        return [info for _, info in self._early.expire()]

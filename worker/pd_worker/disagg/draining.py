"""Draining: requests that have ended while a transfer may still touch their memory.

Pages and metadata slots are handed to nobody else before no writer (on decode: the peer; on
prefill: our own writer thread, as a reader) can reach them any more.
"""

from __future__ import annotations

from typing import Protocol

from pd_worker.core.req import Req
from pd_worker.disagg.metadata import ReqToMetadataIdxAllocator
from pd_worker.scheduler.request_memory import RequestMemory


class Link(Protocol):
    """A sender or receiver of the KV manager."""

    @property
    def drained(self) -> bool:
        """True once nothing of the transfer touches this side's memory."""

    def clear(self) -> None:
        """Forget the room."""


class Draining:
    """Owns the memory of ended requests until their links are drained, then gives it back."""

    def __init__(self, memory: RequestMemory, slots: ReqToMetadataIdxAllocator) -> None:
        self._memory, self._slots = memory, slots
        self._entries: list[tuple[Req, Link]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Draining({[req.room for req, _ in self._entries]})"

    def add(self, req: Req, link: Link | None) -> None:
        """Take over an ended request; without a link it never had a transfer."""
        if link is None or link.drained:
            self._free(req, link)
        else:
            self._entries.append((req, link))

    def free_drained(self) -> None:
        """Give back what is drained by now."""
        entries, self._entries = self._entries, []
        for req, link in entries:
            self.add(req, link)

    def _free(self, req: Req, link: Link | None) -> None:
        if link is not None:
            link.clear()
        if req.metadata_slot >= 0:
            self._slots.free(req.metadata_slot)
            req.metadata_slot = -1
        self._memory.release(req)

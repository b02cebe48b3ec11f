"""Prefill's end of one room.

Three threads meet here. The scheduler calls the public methods; the control thread sets `target`
before the room becomes WaitingForInput; the session's writer thread reports each written chunk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pd_worker.errors import IntegrityError, TransferError
from pd_worker.transfer.args import KVArgs
from pd_worker.transfer.base import BaseKVSender, Indices
from pd_worker.transfer.common import Timer
from pd_worker.transfer.control import Control
from pd_worker.transfer.poll import TERMINAL, KVPoll, RoomTable
from pd_worker.transfer.session import Chunk, Session
from pd_worker.transfer.wire import TransferInfo


class SenderHost(Protocol):
    """What a sender uses of its manager; the last four run on the control thread."""

    args: KVArgs
    rooms: RoomTable
    control: Control
    wake: Callable[[], None]

    def started(self, sender: KVSender) -> None:
        """Its first chunk is on its way."""

    def ended(self, sender: KVSender) -> None:
        """Its room is Success or Failed: tell decode."""

    def drained(self, sender: KVSender) -> None:
        """Its room is Failed and nothing touches decode's pages any more: tell decode."""

    def forget(self, sender: KVSender) -> None:
        """The scheduler has cleared it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the KV goes."""

    session: Session
    info: TransferInfo
    pages: Indices


class KVSender(BaseKVSender):
    """See BaseKVSender."""

    def __init__(self, room: int, host: SenderHost) -> None:
        self.room = room
        self.timer = Timer(host.control)
        self.target: Target | None = None
        self.clean = True
        self.cleared = False
        self._host = host
        self._num_pages = self._aux_index = -1
        self._sent = 0
        self._lock = threading.Lock()
        self._outstanding = 0

    def init(self, num_kv_indices: int, aux_index: int) -> None:
        if not 0 <= aux_index < self._host.args.num_meta_slots:
            raise IntegrityError(f"room={self.room}: no metadata slot {aux_index}")
        self._num_pages, self._aux_index = num_kv_indices, aux_index
        if self.target is not None and self.target.pages.size != num_kv_indices:
            self.fail(
                f"decode published {self.target.pages.size} pages, prefill has {num_kv_indices}"
            )

    def send(
        self, kv_indices: Indices, state_indices: Indices | None = None, *, num_kv_tokens: int
    ) -> None:
        if state_indices is not None:
            raise TransferError("KVArgs describe no state region")
        if self.cancelled:
            return
        chunk = self._next_chunk(kv_indices)
        with self._lock:
            self._outstanding += 1
        if self._host.rooms.update(self.room, KVPoll.Transferring):
            self._host.control.call(self._host.started, self)
        if self.target is None or not self.target.session.put(chunk):
            self.fail("the decode worker is gone")
            self._done(1)

    def _next_chunk(self, kv_indices: Indices) -> Chunk:
        start, end = self._sent, self._sent + kv_indices.size
        if self.target is None or end > self._num_pages:
            raise IntegrityError(
                f"room={self.room}: page {end} of {self._num_pages} sent in state {self.poll()}"
            )
        pages = np.array(kv_indices, dtype=np.int32)
        if pages.size and not (pages.min() >= 0 and pages.max() < self._host.args.num_pages):
            raise IntegrityError(f"room={self.room}: a page is outside the pool")
        self._sent = end
        last = end == self._num_pages
        return Chunk(
            owner=self,
            src_pages=pages,
            dst_pages=self.target.pages[start:end],
            slots=(self._aux_index, self.target.info.aux_index) if last else None,
        )

    def poll(self) -> int:
        return self._host.rooms.poll(self.room)

    def failure(self) -> str:
        return self._host.rooms.failure(self.room)

    def abort(self, reason: str) -> None:
        self.fail(reason)

    def clear(self) -> None:
        if self.poll() not in TERMINAL:
            self.fail("cleared before it was finished")
        self._host.rooms.clear(self.room)
        self._host.control.call(self._host.forget, self)

    @property
    def drained(self) -> bool:
        return self._outstanding == 0

    # Any thread:

    @property
    def cancelled(self) -> bool:
        """Whether the room is Failed."""
        return self.poll() == KVPoll.Failed

    def fail(self, reason: str) -> None:
        """Fail the room unless it is finished, and drop what has not been written yet."""
        if not self._host.rooms.update(self.room, KVPoll.Failed, reason):
            return
        if self.target is not None:
            self._done(self.target.session.discard(self))
        self._host.control.call(self._host.ended, self)

    # The writer thread:

    def written(self, chunk: Chunk, error: str) -> None:
        """Part of ChunkOwner."""
        if error:
            self.clean = False
            self.fail(error)
        self._done(1)
        if chunk.slots is None or error:
            return
        if self._host.rooms.update(self.room, KVPoll.Success):
            self._host.control.call(self._host.ended, self)

    def _done(self, num_chunks: int) -> None:
        if not num_chunks:
            return
        with self._lock:
            self._outstanding -= num_chunks
            drained = self._outstanding == 0
        if drained and self.cancelled:
            self._host.wake()
            self._host.control.call(self._host.drained, self)

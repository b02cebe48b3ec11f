"""Decode's end of one room. The scheduler calls the public methods, the control thread the rest."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from pd_worker.errors import IntegrityError, TransferError
from pd_worker.transfer.args import KVArgs
from pd_worker.transfer.base import BaseKVReceiver, Indices
from pd_worker.transfer.common import Timer
from pd_worker.transfer.control import Control
from pd_worker.transfer.links import Link, PrefillPeer
from pd_worker.transfer.mailbox import Endpoint
from pd_worker.transfer.poll import NAMES, TERMINAL, KVPoll, RoomTable
from pd_worker.transfer.wire import TransferInfo, pack_pages


class ReceiverHost(Protocol):
    """What a receiver uses of its manager; the methods run on the control thread."""

    args: KVArgs
    rooms: RoomTable
    control: Control

    @property
    def incarnation(self) -> str:
        """Of this process."""

    def attach(self, receiver: KVReceiver) -> None:
        """Find its prefill."""

    def connected(self, receiver: KVReceiver) -> None:
        """Its prefill is found."""

    def publish(self, receiver: KVReceiver) -> None:
        """Send its TransferInfo."""

    def failed(self, receiver: KVReceiver, tell: bool) -> None:
        """Its room is Failed; `tell` prefill unless prefill told us."""

    def forget(self, receiver: KVReceiver) -> None:
        """The scheduler has cleared it."""


class KVReceiver(BaseKVReceiver):
    """See BaseKVReceiver."""

    def __init__(self, room: int, server: Endpoint, host: ReceiverHost) -> None:
        self.room, self.server = room, server
        self.dp_rank = 0
        self.timer = Timer(host.control)
        self.peer: PrefillPeer | None = None
        self.link: Link | None = None
        self.info: TransferInfo | None = None
        self.num_pages = 0
        self.published_at = 0.0
        """When TransferInfo last went out; 0: never, so no writer knows the pages."""
        self._host = host
        self._drained = True

    def init(self, prefill_dp_rank: int = 0) -> None:
        self.dp_rank = max(prefill_dp_rank, 0)
        self._host.control.call(self._host.attach, self)

    def send_metadata(
        self,
        kv_indices: Indices,
        aux_index: int,
        state_indices: Indices | None = None,
        *,
        decode_prefix_len: int = 0,
    ) -> None:
        if state_indices is not None:
            raise TransferError("KVArgs describe no state region")
        state = self.poll()  # once: the control thread may fail the room at any moment
        if state == KVPoll.Failed:
            return
        self._check(state, kv_indices, aux_index)
        self.num_pages = int(kv_indices.size)
        self.info = TransferInfo(
            sender=self._host.incarnation,
            room=self.room,
            pages=pack_pages(kv_indices),
            aux_index=aux_index,
            decode_prefix_len=decode_prefix_len,
        )
        self._drained = False
        self._host.rooms.update(self.room, KVPoll.Transferring)
        self._host.control.call(self._host.publish, self)

    def _check(self, state: int, pages: Indices, aux_index: int) -> None:
        args = self._host.args
        inside = not pages.size or (pages.min() >= 0 and pages.max() < args.num_pages)
        distinct = np.unique(pages).size == pages.size
        if not (inside and distinct and 0 <= aux_index < args.num_meta_slots):
            raise IntegrityError(f"room={self.room}: pages or slot are not of our pools")
        if state != KVPoll.WaitingForInput:
            raise IntegrityError(f"room={self.room}: pages published in state {NAMES[state]}")

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
        return self._drained

    def fail(self, reason: str, *, tell: bool = True) -> None:
        """Fail the room unless it is finished. Any thread."""
        if self._host.rooms.update(self.room, KVPoll.Failed, reason):
            self._host.control.call(self._host.failed, self, tell)

    # The control thread:

    def connected(self, link: Link) -> None:
        """Part of Waiter."""
        self.link = link
        self._host.connected(self)

    def refused(self, reason: str) -> None:
        """Part of Waiter."""
        self.fail(reason)

    def settle(self) -> None:
        """No writer can touch the pages any more."""
        self._drained = True

"""A KV manager pair in one thread, whose every message and write happens when a test says so.

It reaches interleavings that real sockets and threads only meet by chance; the same flows run over
the real managers in test_pair.py and tests/e2e.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from pd_worker.disagg.metadata import SLOT
from pd_worker.errors import InvalidRequest
from pd_worker.model.runner_fake import FakeKVPool
from pd_worker.transfer.base import BaseKVManager, BaseKVReceiver, BaseKVSender, Indices
from pd_worker.transfer.poll import KVPoll, advance


@dataclass
class Side:
    """One leg of a room."""

    state: int = KVPoll.Bootstrapping
    reason: str = ""
    opened: bool = False
    drained: bool = True

    def update(self, state: int, reason: str = "") -> None:
        if advance(self.state, state) != self.state:
            self.state, self.reason = state, reason


@dataclass
class Room:
    """What both legs know, and what is on its way between them, in order."""

    number: int
    prefill: Side = field(default_factory=Side)
    decode: Side = field(default_factory=Side)
    events: deque[Callable[[], None]] = field(default_factory=deque)
    pages: Indices | None = None
    slot: int = -1
    num_sent: int = 0
    writer_stopped: bool = False


class Network:
    """All rooms of one prefill and one decode worker; `pump` lets one thing happen."""

    def __init__(self, prefill: FakeKVPool, decode: FakeKVPool, slots: int) -> None:
        self.pools = prefill, decode
        self.metadata = tuple(memoryview(bytearray(slots * SLOT.itemsize)) for _ in range(2))
        self.rooms: dict[int, Room] = {}

    def room(self, number: int) -> Room:
        return self.rooms.setdefault(number, Room(number))

    def pump(self, choice: int) -> bool:
        """Let the next event of one room happen; False where nothing is on its way."""
        busy = [room for room in self.rooms.values() if room.events]
        if not busy:
            return False
        busy[choice % len(busy)].events.popleft()()
        return True

    def claim(self, room: Room, pages: Indices) -> None:
        """Pages are promised to a writer: no other writer may still have them."""
        for other in self.rooms.values():
            if other is not room and other.pages is not None and not other.decode.drained:
                assert not np.intersect1d(pages, other.pages).size, "reused before it was drained"

    def copy(self, room: Room, source: Indices, first: int) -> None:
        """The one-sided write of some pages."""
        if room.writer_stopped:
            return
        assert room.pages is not None
        assert not room.decode.drained, "wrote into memory that may be someone else's"
        target = room.pages[first : first + len(source)]
        self.pools[1].words[target] = self.pools[0].words[source]

    def finish(self, room: Room, slot: int) -> None:
        """The write of the metadata slot and the word that all is there."""
        if room.writer_stopped:
            return
        source, target = (np.frombuffer(buffer, SLOT) for buffer in self.metadata)
        target[room.slot] = source[slot]
        for side in (room.prefill, room.decode):
            side.update(KVPoll.Success)
            side.drained = True

    def fail(self, room: Room, reason: str, *, by: Side) -> None:
        """One leg fails: it knows at once, the writer stops later, the other leg hears of it."""
        if by.state in (KVPoll.Failed, KVPoll.Success):
            return
        by.update(KVPoll.Failed, reason)
        other = room.decode if by is room.prefill else room.prefill

        def stop() -> None:
            room.writer_stopped = True
            other.update(KVPoll.Failed, reason)

        def acknowledge() -> None:
            room.prefill.drained = room.decode.drained = True

        room.events += [stop, acknowledge]


@dataclass
class LoopbackSender(BaseKVSender):
    """Prefill's end."""

    network: Network
    room: Room
    aux_index: int = -1
    expected: int = -1

    def init(self, num_kv_indices: int, aux_index: int) -> None:
        assert self.room.prefill.state == KVPoll.WaitingForInput
        self.expected, self.aux_index = num_kv_indices, aux_index
        self.room.prefill.drained = False

    def send(
        self, kv_indices: Indices, state_indices: Indices | None = None, *, num_kv_tokens: int
    ) -> None:
        room, first = self.room, self.room.num_sent
        source = kv_indices.copy()
        room.num_sent += len(kv_indices)
        room.prefill.update(KVPoll.Transferring)
        room.events.append(lambda: self.network.copy(room, source, first))
        if room.num_sent == self.expected:
            room.events.append(lambda: self.network.finish(room, self.aux_index))

    def poll(self) -> int:
        return self.room.prefill.state

    def failure(self) -> str:
        return self.room.prefill.reason

    def clear(self) -> None:
        assert self.room.prefill.state in (KVPoll.Success, KVPoll.Failed)

    def abort(self, reason: str) -> None:
        self.network.fail(self.room, reason, by=self.room.prefill)

    @property
    def drained(self) -> bool:
        return self.room.prefill.drained


@dataclass
class LoopbackReceiver(BaseKVReceiver):
    """Decode's end."""

    network: Network
    room: Room

    def init(self, prefill_dp_rank: int = 0) -> None:
        decode = self.room.decode
        self.room.events.append(lambda: decode.update(KVPoll.WaitingForInput))

    def send_metadata(
        self,
        kv_indices: Indices,
        aux_index: int,
        state_indices: Indices | None = None,
        *,
        decode_prefix_len: int = 0,
    ) -> None:
        room = self.room
        self.network.claim(room, kv_indices)
        room.pages, room.slot = kv_indices.copy(), aux_index
        room.decode.update(KVPoll.Transferring)
        room.decode.drained = False
        room.events.append(lambda: room.prefill.update(KVPoll.WaitingForInput))

    def poll(self) -> int:
        return self.room.decode.state

    def failure(self) -> str:
        return self.room.decode.reason

    def clear(self) -> None:
        assert self.room.decode.state in (KVPoll.Success, KVPoll.Failed)

    def abort(self, reason: str) -> None:
        self.network.fail(self.room, reason, by=self.room.decode)

    @property
    def drained(self) -> bool:
        return self.room.decode.drained


class LoopbackManager(BaseKVManager):
    """The manager of one leg."""

    def __init__(self, network: Network, role: Literal["prefill", "decode"]) -> None:
        self.network, self.role = network, role

    def create_sender(self, room: int) -> LoopbackSender:
        found = self.network.room(room)
        if found.prefill.opened:
            raise InvalidRequest(f"bootstrap_room {room} is taken", param="bootstrap_room")
        found.prefill.opened = True
        return LoopbackSender(self.network, found)

    def create_receiver(self, host: str, port: int, room: int) -> LoopbackReceiver:
        found = self.network.room(room)
        if found.decode.opened:
            raise InvalidRequest(f"bootstrap_room {room} is taken", param="bootstrap_room")
        found.decode.opened = True
        return LoopbackReceiver(self.network, found)

    def reject(self, host: str, port: int, room: int, reason: str) -> None:
        found = self.network.room(room)
        own, other = found.prefill, found.decode
        if self.role == "decode":
            own, other = other, own
        if not own.opened:
            other.update(KVPoll.Failed, reason)

    def problem(self) -> str:
        return ""

    def close(self) -> None:
        pass

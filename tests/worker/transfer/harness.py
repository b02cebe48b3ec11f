"""Real parts for the transfer tests: a BootstrapServer on a thread, pools, managers."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from aiohttp import web

from pd_worker.transfer.args import KVArgs, LinkOptions
from pd_worker.transfer.base import BaseKVReceiver, BaseKVSender
from pd_worker.transfer.bootstrap import make_app
from pd_worker.transfer.decode import DecodeKVManager
from pd_worker.transfer.engine import TransferEngine
from pd_worker.transfer.engines.fake import FakeEngine
from pd_worker.transfer.engines.mooncake import MooncakeEngine
from pd_worker.transfer.engines.shm import ShmEngine
from pd_worker.transfer.poll import NAMES, KVPoll
from pd_worker.transfer.prefill import PrefillKVManager

Bytes = npt.NDArray[np.uint8]
PAGE_NBYTES = 256
NUM_PAGES = 64
SLOT_NBYTES = 64
NUM_SLOTS = 16
CANARY = 0xCA


def until(condition: Callable[[], bool], timeout_s: float = 10.0, what: str = "") -> float:
    """Step until `condition` holds; returns how long it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, what or "condition never held"
        time.sleep(0.001)
    return time.monotonic() - started


def until_state(end: BaseKVSender | BaseKVReceiver, state: int, timeout_s: float = 10.0) -> float:
    """Step until a room is in `state`; fails at once on another terminal state."""

    def reached() -> bool:
        now = end.poll()
        assert now == state or now not in (KVPoll.Failed, KVPoll.Success), (
            f"{NAMES[now]}: {end.failure()}"
        )
        return now == state

    return until(reached, timeout_s, f"never {NAMES[state]}")


class ServerThread:
    """An aiohttp application on a thread and port of its own."""

    def __init__(self, app: web.Application, host: str = "127.0.0.1", port: int = 0) -> None:
        self.host, self.port = host, port
        self._app = app
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runner = web.AppRunner(self._app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, self.host, self.port, reuse_address=True)
        await site.start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)


@dataclass
class Pool:
    """One worker's KV pages and metadata slots."""

    kv: Bytes
    meta: Bytes

    @classmethod
    def private(cls) -> Pool:
        return cls(
            kv=np.full(NUM_PAGES * PAGE_NBYTES, CANARY, np.uint8),
            meta=np.zeros(NUM_SLOTS * SLOT_NBYTES, np.uint8),
        )

    @classmethod
    def shared(cls, engine: ShmEngine) -> Pool:
        kv = np.frombuffer(engine.allocate(NUM_PAGES * PAGE_NBYTES), np.uint8)
        kv[:] = CANARY
        return cls(kv=kv, meta=np.frombuffer(engine.allocate(NUM_SLOTS * SLOT_NBYTES), np.uint8))

    def page(self, index: int) -> Bytes:
        return self.kv[index * PAGE_NBYTES : (index + 1) * PAGE_NBYTES]

    def slot(self, index: int) -> Bytes:
        return self.meta[index * SLOT_NBYTES : (index + 1) * SLOT_NBYTES]

    def fill(self, pages: Iterable[int], value: int) -> None:
        for page in pages:
            self.page(page)[:] = value

    def write_slot(self, index: int, room: int) -> None:
        self.slot(index)[:8] = np.array([room], dtype="<u8").view(np.uint8)
        self.slot(index)[8:] = room % 251

    def room_in(self, index: int) -> int:
        return int(self.slot(index)[:8].view("<u8")[0])

    def args(self, **changes: Any) -> KVArgs:
        args = KVArgs(
            kv_ptr=self.kv.ctypes.data,
            kv_nbytes=self.kv.nbytes,
            page_nbytes=PAGE_NBYTES,
            num_pages=NUM_PAGES,
            meta_ptr=self.meta.ctypes.data,
            meta_slot_nbytes=SLOT_NBYTES,
            num_meta_slots=NUM_SLOTS,
            meta_layout="meta/1",
            page_size=16,
            kv_dtype="float32",
            num_layers=1,
            num_kv_heads=1,
            head_dim=2,
            pairing_key="key",
        )
        return replace(args, **changes)


def options(**changes: Any) -> LinkOptions:
    base = LinkOptions(
        host="127.0.0.1",
        incarnation=uuid.uuid4().hex,
        bootstrap_timeout_s=20.0,
        transfer_timeout_s=20.0,
        lease_ttl_s=3.0,
    )
    return replace(base, **changes)


Wrap = Callable[[TransferEngine], TransferEngine]


def build_engine(kind: str, host: str = "127.0.0.1") -> TransferEngine:
    if kind == "shm":
        return ShmEngine()
    return MooncakeEngine(host) if kind == "mooncake" else FakeEngine()


@dataclass
class Wakes:
    count: int = 0

    def __call__(self) -> None:
        self.count += 1


@dataclass
class Prefill:
    """A prefill worker in this process."""

    kind: str = "shm"
    link: LinkOptions = field(default_factory=options)
    wrap: Wrap = lambda engine: engine
    changes: dict[str, Any] = field(default_factory=dict)
    port: int = 0
    wait: bool = True

    def __post_init__(self) -> None:
        self.pool = Pool.private()
        self.wakes = Wakes()
        self.server = ServerThread(make_app(self.link.secret), self.link.host, self.port)
        self.port = self.server.port
        self.manager = PrefillKVManager(
            self.pool.args(**self.changes),
            [self.wrap(build_engine(self.kind, self.link.host))],
            self.link,
            wake=self.wakes,
            bootstrap_url=self.server.url,
        )
        if self.wait:
            until(lambda: self.manager.registered, what="never registered")

    def close(self) -> None:
        self.manager.close()
        self.server.close()


@dataclass
class Decode:
    """A decode worker in this process."""

    kind: str = "shm"
    link: LinkOptions = field(default_factory=options)
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        engine = build_engine(self.kind, self.link.host)
        self.pool = Pool.shared(engine) if isinstance(engine, ShmEngine) else Pool.private()
        self.wakes = Wakes()
        self.manager = DecodeKVManager(
            self.pool.args(**self.changes), [engine], self.link, wake=self.wakes
        )

    def close(self) -> None:
        self.manager.close()


def indices(*pages: int) -> npt.NDArray[np.int32]:
    return np.array(pages, dtype=np.int32)


def receive(
    decode: Decode, prefill: Prefill, room: int, pages: Iterable[int], slot: int
) -> BaseKVReceiver:
    """Open a room on decode and publish pages as soon as that is possible."""
    receiver = decode.manager.create_receiver(prefill.link.host, prefill.port, room)
    receiver.init()
    until_state(receiver, KVPoll.WaitingForInput)
    receiver.send_metadata(indices(*pages), slot)
    return receiver


def transfer(
    prefill: Prefill,
    decode: Decode,
    room: int,
    *,
    src: tuple[int, ...] = (1, 2, 3),
    dst: tuple[int, ...] = (5, 6, 9),
    slots: tuple[int, int] = (0, 1),
    chunk: int = 2,
) -> None:
    """One whole request, in chunks; checks what arrived, and clears both ends."""
    for offset, page in enumerate(src):
        prefill.pool.fill([page], (room + offset) % 199)
    prefill.pool.write_slot(slots[0], room)
    sender = prefill.manager.create_sender(room)
    receiver = receive(decode, prefill, room, dst, slots[1])
    until_state(sender, KVPoll.WaitingForInput)
    sender.init(len(src), slots[0])
    for start in range(0, len(src), chunk):
        sender.send(indices(*src[start : start + chunk]), num_kv_tokens=16)
    until_state(sender, KVPoll.Success)
    until_state(receiver, KVPoll.Success)
    for offset, page in enumerate(dst):
        assert (decode.pool.page(page) == (room + offset) % 199).all()
    assert decode.pool.room_in(slots[1]) == room
    assert sender.drained
    assert receiver.drained
    sender.clear()
    receiver.clear()

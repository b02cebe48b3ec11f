"""One conformance suite for every transfer engine.

A target is memory that an engine has opened to peers, between two closed canary areas.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pd_worker.errors import BackendUnavailable, TransferError
from pd_worker.transfer.engine import TransferEngine
from pd_worker.transfer.engines.fake import FakeEngine, TamperedEngine
from pd_worker.transfer.engines.mooncake import MooncakeEngine
from pd_worker.transfer.engines.nixl import NixlEngine
from pd_worker.transfer.engines.shm import ShmEngine

SIZE = 1 << 16
GUARD = 4096
CANARY = 0xCA
Ints = npt.NDArray[np.int64]


def i64(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


@dataclass
class Rig:
    """A writer, a target engine, and their memories."""

    writer: TransferEngine
    target: TransferEngine
    src: npt.NDArray[np.uint8]
    memory: npt.NDArray[np.uint8]
    """guard | SIZE open bytes | guard"""

    @property
    def dst(self) -> int:
        return int(self.memory.ctypes.data) + GUARD

    def write(self, src: Ints, dst: Ints, lengths: Ints) -> None:
        self.writer.write(self.target.session_id, self.src.ctypes.data + src, dst, lengths)


def _memory(engine: TransferEngine) -> npt.NDArray[np.uint8]:
    nbytes = SIZE + 2 * GUARD
    if isinstance(engine, ShmEngine):
        return np.frombuffer(engine.allocate(nbytes), np.uint8)
    return np.zeros(nbytes, np.uint8)


def _make(kind: str) -> TransferEngine:
    try:
        if kind == "shm":
            return ShmEngine()
        return MooncakeEngine("127.0.0.1") if kind == "mooncake" else NixlEngine()
    except BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(params=["shm", "mooncake", "nixl"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def rig(kind: str) -> Iterator[Rig]:
    writer, target = _make(kind), _make(kind)
    memory = _memory(target)
    memory[:] = CANARY
    src = np.arange(SIZE, dtype=np.uint64).astype(np.uint8)
    made = Rig(writer=writer, target=target, src=src, memory=memory)
    target.register(made.dst, SIZE)
    if writer.registers_source:
        writer.register(src.ctypes.data, src.nbytes)
    yield made
    writer.close()
    target.close()


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Source offset, destination offset, length; destinations do not overlap."""
    cuts = sorted(draw(st.sets(st.integers(0, SIZE), min_size=2, max_size=40)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    order = draw(st.permutations(spans))
    return [(draw(st.integers(0, SIZE - (b - a))), a, b - a) for a, b in order]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(batch=batches())
def test_bytes_land_exactly_and_only_there(rig: Rig, batch: list[tuple[int, int, int]]) -> None:
    rig.memory[:] = CANARY
    expected = rig.memory.copy()
    for src, dst, length in batch:
        expected[GUARD + dst : GUARD + dst + length] = rig.src[src : src + length]
    src, dst, lengths = (i64(*column) for column in zip(*batch, strict=True))
    rig.write(src, rig.dst + dst, lengths)
    assert (rig.memory == expected).all()


def test_a_batch_longer_than_any_queue_arrives(rig: Rig) -> None:
    offsets = np.arange(0, SIZE, 16, dtype=np.int64)
    rig.write(offsets, rig.dst + offsets, np.full_like(offsets, 16))
    assert (rig.memory[GUARD:-GUARD] == rig.src).all()


@pytest.mark.parametrize(
    ("offset", "length"),
    [
        (-1, 16),
        (-16, 32),
        (SIZE, 1),
        (SIZE - 8, 16),
        (SIZE + GUARD // 2, 64),
        (2**62, 16),
        (0, SIZE + 1),
    ],
    ids=["before", "across start", "behind", "across end", "guard", "far", "too long"],
)
def test_writes_outside_the_region_are_refused(rig: Rig, offset: int, length: int) -> None:
    if rig.writer.name == "nixl" and length > SIZE:
        pytest.skip("nixl checks the source first")
    with pytest.raises(TransferError):
        rig.write(i64(0), i64(rig.dst) + offset, i64(length))
    assert (rig.memory[:GUARD] == CANARY).all()
    assert (rig.memory[-GUARD:] == CANARY).all()
    rig.write(i64(0), i64(rig.dst), i64(16))
    assert (rig.memory[GUARD : GUARD + 16] == rig.src[:16]).all()


def test_one_bad_address_in_a_batch_is_an_error(rig: Rig) -> None:
    with pytest.raises(TransferError):
        rig.write(i64(0, 0, 0), rig.dst + i64(0, SIZE, 64), i64(16, 16, 16))
    assert (rig.memory[-GUARD:] == CANARY).all()


def test_unregister_revokes(rig: Rig) -> None:
    if rig.writer.name == "nixl":
        pytest.skip("UCX does not check keys of host memory")
    rig.write(i64(0), i64(rig.dst), i64(16))
    rig.target.unregister(rig.dst)
    rig.memory[:] = CANARY
    with pytest.raises(TransferError):
        rig.write(i64(0), i64(rig.dst), i64(16))
    assert (rig.memory == CANARY).all()
    rig.target.register(rig.dst, SIZE)
    rig.write(i64(0), i64(rig.dst), i64(16))


def test_unregistering_what_is_not_registered_is_an_error(rig: Rig) -> None:
    with pytest.raises(TransferError):
        rig.target.unregister(rig.dst + 1)


@pytest.mark.parametrize("session", ["", "nonsense", "127.0.0.1:1", "../../etc/passwd:00"])
def test_unknown_sessions_are_an_error(rig: Rig, session: str) -> None:
    with pytest.raises(TransferError):
        rig.writer.write(session, i64(rig.src.ctypes.data), i64(rig.dst), i64(16))


def test_many_small_writes_keep_sockets_and_files_flat(rig: Rig) -> None:
    rig.write(i64(0), i64(rig.dst), i64(64))
    process = psutil.Process()
    before = process.num_fds(), process.num_threads(), len(process.net_connections())
    for n in range(5000):
        rig.write(i64(n % 1024), i64(rig.dst), i64(64))
    assert process.num_fds() <= before[0] + 4
    assert process.num_threads() <= before[1] + 2
    assert len(process.net_connections()) <= before[2] + 4


# shm alone


def test_shm_reaches_only_who_shares_the_memory(tmp_path: Path) -> None:
    here, beside, elsewhere = ShmEngine(), ShmEngine(), ShmEngine(tmp_path)
    assert here.reachable(beside.session_id)
    assert not here.reachable(elsewhere.session_id)
    owner = beside.session_id.partition(":")[0]
    here.reset(beside.session_id)
    assert not here.reachable(f"{owner}:{'0' * 32}")
    for engine in (here, beside, elsewhere):
        engine.close()


def test_shm_tells_a_live_owner_from_a_dead_one() -> None:
    writer, owner = ShmEngine(), ShmEngine()
    session = owner.session_id
    assert writer.reachable(session)
    assert not writer.gone(session)
    owner.close()
    assert writer.gone(session)
    assert not writer.reachable(session)
    writer.close()


def test_shm_removes_files_of_dead_owners_and_no_others(tmp_path: Path) -> None:
    alive = ShmEngine(tmp_path)
    alive.allocate(4096)
    child = os.fork()
    if child == 0:
        ShmEngine(tmp_path).allocate(4096)
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 4
    other = ShmEngine(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    other.close()
    alive.close()
    assert not list(tmp_path.iterdir())


def test_shm_without_room_says_so_at_once(tmp_path: Path) -> None:
    engine = ShmEngine(tmp_path)
    with pytest.raises(BackendUnavailable, match="bytes in"):
        engine.allocate(1 << 60)
    with pytest.raises(BackendUnavailable, match="cannot use"):
        ShmEngine(tmp_path / "missing")
    engine.close()


def test_shm_refuses_memory_that_is_not_shared() -> None:
    engine, private = ShmEngine(), np.zeros(4096, np.uint8)
    with pytest.raises(TransferError, match="allocated"):
        engine.register(private.ctypes.data, private.nbytes)
    engine.close()


# the engines without a network


def test_fake_accepts_fake_sessions_and_no_others() -> None:
    fake = FakeEngine()
    fake.write(FakeEngine().session_id, i64(1), i64(1), i64(1))
    with pytest.raises(TransferError):
        fake.write("127.0.0.1:1", i64(1), i64(1), i64(1))


def test_tampered_engine_loses_a_write_when_told() -> None:
    lossy = TamperedEngine(FakeEngine(), lambda session: False)
    lossy.write("not fake", i64(1), i64(1), i64(1))
    assert lossy.writes == 1


def test_mooncake_refuses_rdma_without_a_device() -> None:
    if os.path.exists("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
        pytest.skip("this machine has an RDMA device")
    with pytest.raises(BackendUnavailable, match="no RDMA device"):
        MooncakeEngine("127.0.0.1", protocol="rdma")

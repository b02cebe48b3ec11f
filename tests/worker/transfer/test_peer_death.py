"""Peers that are killed, restarted, stopped and continued. Real processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from pd_worker.transfer.poll import KVPoll
from pd_worker.transfer.probe import Door
from tests.worker.transfer.conftest import Factory
from tests.worker.transfer.harness import (
    CANARY,
    Decode,
    Prefill,
    indices,
    options,
    receive,
    transfer,
    until,
    until_state,
)
from tests.worker.transfer.processes import PeerProcess

SLOW_S = 0.3


@pytest.fixture
def spawn(stack: ExitStack) -> Callable[..., PeerProcess]:
    def start(role: str, **settings: object) -> PeerProcess:
        process = PeerProcess(role, **settings)
        stack.callback(process.close)
        return process

    return start


class Remote:
    """A prefill process, as `receive` wants it."""

    def __init__(self, process: PeerProcess) -> None:
        self.process, self.port, self.link = process, process.port, options()


def test_two_processes_transfer(spawn: Factory, decode: Decode) -> None:
    remote = Remote(spawn("prefill", kind="shm"))
    remote.process.tell(room=5, pages=[1, 2], slot=0, value=9)
    receiver = receive(decode, remote, 5, (3, 7), 2)
    until_state(receiver, KVPoll.Success)
    assert (decode.pool.page(3) == 9).all()
    assert (decode.pool.page(7) == 9).all()
    assert decode.pool.room_in(2) == 5
    assert remote.process.read() == {"room": 5, "state": KVPoll.Success, "reason": ""}


@pytest.mark.parametrize("kind", ["shm", "mooncake"])
def test_killed_prefill_fails_its_rooms_and_gives_pages_back(
    kind: str, spawn: Factory, start_decode: Factory
) -> None:
    decode = start_decode(kind=kind)
    decode.manager.engines[kind].settle_s = min(1.0, decode.manager.engines[kind].settle_s)
    remote = Remote(spawn("prefill", kind=kind, delay_s=SLOW_S))
    remote.process.tell(room=1, pages=list(range(20)), slot=0, value=9)
    writing = receive(decode, remote, 1, range(20, 40), 0)
    waiting = receive(decode, remote, 2, (50,), 1)
    idle = decode.manager.create_receiver("127.0.0.1", remote.port, 3)
    idle.init()
    until_state(idle, KVPoll.WaitingForInput)
    remote.process.kill()
    for receiver in (writing, waiting, idle):
        until(lambda r=receiver: r.poll() == KVPoll.Failed, 5.0, "not failed within 5 s")
        assert "died" in receiver.failure()
    assert idle.drained
    until(lambda: writing.drained and waiting.drained, 3.0)
    for receiver in (writing, waiting, idle):
        receiver.clear()
    until(lambda: decode.manager.gauges()["kv_links"] == 0)
    assert decode.manager.gauges()["kv_quarantined_pages"] == 0


@pytest.mark.parametrize("stale_room", [False, True], ids=["idle", "under load"])
def test_prefill_restarted_behind_its_address_is_used_at_once(
    stale_room: bool, spawn: Factory, decode: Decode
) -> None:
    first = Remote(spawn("prefill", kind="shm"))
    first.process.tell(room=1, pages=[1], slot=0, value=9)
    until_state(receive(decode, first, 1, (3,), 0), KVPoll.Success)
    if stale_room:
        receive(decode, first, 2, (9,), 1)
    first.process.kill()
    second = Remote(spawn("prefill", kind="shm", port=first.port))
    second.process.tell(room=3, pages=[1], slot=0, value=8)
    started = time.monotonic()
    while True:  # requests that met the dead process may fail, for a few seconds
        receiver = decode.manager.create_receiver("127.0.0.1", first.port, 3)
        receiver.init()
        until(lambda r=receiver: r.poll() in (KVPoll.Failed, KVPoll.WaitingForInput))
        if receiver.poll() == KVPoll.WaitingForInput:
            break
        receiver.clear()
    receiver.send_metadata(indices(4), 3)
    until(lambda: receiver.poll() in (KVPoll.Failed, KVPoll.Success))
    if receiver.poll() == KVPoll.Failed:
        second.process.tell(room=4, pages=[1], slot=0, value=8)
        until_state(receive(decode, second, 4, (4,), 4), KVPoll.Success)
    assert time.monotonic() - started < 8.0
    assert (decode.pool.page(4) == 8).all()


def test_stopped_prefill_delays_nobody_else_and_keeps_its_pages(
    spawn: Factory, prefill: Prefill, start_decode: Factory
) -> None:
    decode = start_decode(link=options(transfer_timeout_s=2.0))
    remote = Remote(spawn("prefill", kind="shm", delay_s=SLOW_S))
    remote.process.tell(room=1, pages=list(range(20)), slot=0, value=9)
    stalled = receive(decode, remote, 1, range(20, 40), 0)
    until(lambda: (decode.pool.page(20) == 9).all())
    remote.process.stop()
    for room in range(100, 300):
        decode.manager.reject("127.0.0.1", remote.port, room, "flood")
    for room in range(10, 60):
        started = time.monotonic()
        transfer(prefill, decode, room)
        assert time.monotonic() - started < 1.0
    until(lambda: stalled.poll() == KVPoll.Failed, 4.0)
    assert "no Status within 2 s" in stalled.failure()
    until(lambda: decode.manager.gauges()["kv_quarantined_pages"] == 20)
    time.sleep(4.0)  # longer than any probe: a stopped writer keeps its pages
    assert not stalled.drained
    remote.process.resume()
    until(lambda: stalled.drained, 5.0)


@pytest.mark.parametrize("kind", ["shm", "mooncake"])
def test_killed_decode_frees_prefills_rooms(
    kind: str, spawn: Factory, start_prefill: Factory
) -> None:
    prefill = start_prefill(kind=kind)
    process = spawn("decode", kind=kind)
    sender = prefill.manager.create_sender(1)
    process.tell(room=1, port=prefill.port, pages=[3, 4], slot=0)
    until_state(sender, KVPoll.WaitingForInput)
    process.kill()
    until(lambda: sender.poll() == KVPoll.Failed, 5.0)
    assert "died" in sender.failure()
    assert sender.drained
    sender.clear()
    until(lambda: prefill.manager.gauges()["kv_sessions"] == 0)
    decode = Decode(kind=kind)
    transfer(prefill, decode, 2)
    decode.close()


def test_decode_stopped_behind_mooncake_delays_nobody_else(
    spawn: Factory, start_prefill: Factory, start_decode: Factory
) -> None:
    prefill, healthy = start_prefill(kind="mooncake"), start_decode(kind="mooncake")
    process = spawn("decode", kind="mooncake")
    sender = prefill.manager.create_sender(1)
    process.tell(room=1, port=prefill.port, pages=[3, 4], slot=0)
    until_state(sender, KVPoll.WaitingForInput)
    process.stop()
    sender.init(2, 0)
    sender.send(indices(1, 2), num_kv_tokens=32)
    for room in range(10, 20):
        transfer(prefill, healthy, room)
    assert sender.poll() == KVPoll.Transferring
    assert not sender.drained
    process.resume()
    until_state(sender, KVPoll.Success, 20.0)


async def _nobody_answers(peer: object) -> Door:
    return Door.SILENT


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped process looks like a machine that lost its network, and soon."""
    monkeypatch.setattr("pd_worker.transfer.watch.knock", _nobody_answers)
    monkeypatch.setattr("pd_worker.transfer.watch.UNREACHABLE_S", 3.0)
    monkeypatch.setattr("pd_worker.transfer.renewal.PATIENCE_S", 1.0)


@pytest.mark.usefixtures("unreachable")
@pytest.mark.parametrize("kind", ["shm", "mooncake"])
def test_a_prefill_that_comes_back_into_reach_is_used_again(
    kind: str, spawn: Factory, start_decode: Factory
) -> None:
    decode = start_decode(kind=kind)
    decode.manager.engines[kind].settle_s = 0.0
    remote = Remote(spawn("prefill", kind=kind))
    waiting = receive(decode, remote, 1, (3,), 0)
    remote.process.stop()
    until(lambda: waiting.poll() == KVPoll.Failed, 15.0)
    assert "cannot be reached" in waiting.failure()
    remote.process.resume()
    until(lambda: waiting.drained, 8.0)
    remote.process.tell(room=2, pages=[1], slot=0, value=9)
    until_state(receive(decode, remote, 2, (4,), 1), KVPoll.Success)
    assert (decode.pool.page(4) == 9).all()


@pytest.mark.usefixtures("unreachable")
def test_pages_of_an_unreachable_writer_come_back_when_its_access_is_revoked(
    spawn: Factory, start_prefill: Factory, start_decode: Factory
) -> None:
    decode, healthy = start_decode(kind="mooncake"), start_prefill(kind="mooncake")
    decode.manager.engines["mooncake"].settle_s = 0.0
    transfer(healthy, decode, 99)
    before = decode.manager.engines["mooncake"].session_id
    remote = Remote(spawn("prefill", kind="mooncake", delay_s=SLOW_S))
    remote.process.tell(room=1, pages=list(range(20)), slot=0, value=9)
    stalled = receive(decode, remote, 1, range(20, 40), 0)
    until(lambda: (decode.pool.page(20) == 9).all())
    remote.process.stop()
    room = 100
    while not stalled.drained:  # traffic of other prefills goes on
        room += 1
        transfer(healthy, decode, room, dst=(5, 6, 7))
        assert room < 10_000
    assert decode.manager.engines["mooncake"].session_id != before
    transfer(healthy, decode, 50, dst=(20, 21, 22))
    remote.process.resume()
    assert remote.process.read()["state"] == KVPoll.Failed
    assert (decode.pool.page(22) == 52).all()
    assert (decode.pool.page(39) == CANARY).all()


@pytest.mark.parametrize("end", ["aborted", "served"])
def test_a_prefill_that_forgot_a_decode_gets_to_know_it_again(
    end: str, prefill: Prefill, decode: Decode
) -> None:
    """It was stopped, or out of reach, for so long that it took decode for idle."""
    receiver = receive(decode, prefill, 1, (5,), 1)
    manager = prefill.manager
    until(lambda: manager.gauges()["kv_early_transfer_infos"] == 1)
    manager.control.call(lambda: [manager.sessions.end(each, "idle") for each in manager.sessions])
    until(lambda: not manager.sessions)
    if end == "aborted":
        receiver.abort("left")
    else:
        sender = manager.create_sender(1)
        until_state(sender, KVPoll.WaitingForInput)
        sender.init(1, 0)
        sender.send(indices(1), num_kv_tokens=16)
        until_state(receiver, KVPoll.Success)
    until(lambda: receiver.drained)

"""Several workers, many requests, life and death of a manager."""

from __future__ import annotations

import gc
import random
import threading
import time

import psutil
import pytest

from pd_worker.errors import BackendUnavailable, IntegrityError, TransferError
from pd_worker.transfer.decode import DecodeKVManager
from pd_worker.transfer.poll import KVPoll
from pd_worker.transfer.prefill import PrefillKVManager
from tests.worker.transfer.conftest import Factory
from tests.worker.transfer.harness import (
    Decode,
    Pool,
    Prefill,
    build_engine,
    indices,
    options,
    receive,
    transfer,
    until,
    until_state,
)


@pytest.mark.parametrize("kind", ["shm", "mooncake"])
def test_two_prefills_and_two_decodes_in_all_pairs(
    kind: str, start_prefill: Factory, start_decode: Factory
) -> None:
    prefills = [start_prefill(kind=kind) for _ in range(2)]
    decodes = [start_decode(kind=kind) for _ in range(2)]
    pairs = [(prefill, decode) for prefill in prefills for decode in decodes] * 50
    random.Random(1).shuffle(pairs)
    for room, (prefill, decode) in enumerate(pairs, start=1):
        if room % 8 == 0:
            receiver = receive(decode, prefill, 1000 + room, (40,), 9)
            receiver.abort("left")
            until(lambda r=receiver: r.drained)
            receiver.clear()
        transfer(prefill, decode, room)
    for worker in prefills:
        assert worker.manager.gauges()["kv_sessions"] == 2
        assert worker.manager.counters()["kv_transfers_success"] == 100


def test_concurrent_requests_do_not_mix(prefill: Prefill, decode: Decode) -> None:
    """Sixteen requests at a time, sent in turns, chunk by chunk."""
    for base in range(0, 200, 20):
        rooms = range(base + 1, base + 17)
        ends = []
        for n, room in enumerate(rooms):
            prefill.pool.fill([3 * n, 3 * n + 1, 3 * n + 2], room)
            prefill.pool.write_slot(n, room)
            sender = prefill.manager.create_sender(room)
            pages = (3 * (15 - n) + 2, 3 * (15 - n), 3 * (15 - n) + 1)
            ends.append((n, sender, receive(decode, prefill, room, pages, 15 - n), pages))
        for chunk in range(3):
            for n, sender, _, _ in ends:
                if chunk == 0:
                    until_state(sender, KVPoll.WaitingForInput)
                    sender.init(3, n)
                sender.send(indices(3 * n + chunk), num_kv_tokens=16)
        for (n, sender, receiver, pages), room in zip(ends, rooms, strict=True):
            until_state(receiver, KVPoll.Success)
            until_state(sender, KVPoll.Success)
            assert all((decode.pool.page(page) == room).all() for page in pages)
            assert decode.pool.room_in(15 - n) == room
            sender.clear()
            receiver.clear()


def test_the_fake_engine_serves_requests_without_moving_bytes(
    start_prefill: Factory, start_decode: Factory
) -> None:
    prefill, decode = start_prefill(kind="fake"), start_decode(kind="fake")
    sender = prefill.manager.create_sender(1)
    receiver = receive(decode, prefill, 1, (5,), 1)
    until_state(sender, KVPoll.WaitingForInput)
    sender.init(1, 0)
    sender.send(indices(1), num_kv_tokens=16)
    until_state(receiver, KVPoll.Success)
    assert decode.pool.room_in(1) == 0


def test_the_room_number_arrives_last(start_prefill: Factory, decode: Decode) -> None:
    """Whoever sees the number in the slot sees all of the request."""
    prefill = start_prefill()
    for room in range(1, 30):
        prefill.pool.fill(range(1, 33), room)
        prefill.pool.write_slot(0, room)
        sender = prefill.manager.create_sender(room)
        receiver = receive(decode, prefill, room, range(32), 1)
        until_state(sender, KVPoll.WaitingForInput)
        sender.init(32, 0)
        sender.send(indices(*range(1, 33)), num_kv_tokens=512)
        until(lambda n=room: decode.pool.room_in(1) == n)
        assert all((decode.pool.page(page) == room).all() for page in range(32))
        assert (decode.pool.slot(1)[8:] == room).all()
        until_state(receiver, KVPoll.Success)


def test_every_call_of_the_scheduler_is_quick(prefill: Prefill, decode: Decode) -> None:
    transfer(prefill, decode, 1)
    spent: list[float] = []

    def timed(function: object, *args: object, **kwargs: object) -> object:
        started = time.thread_time()
        result = function(*args, **kwargs)  # type: ignore[operator]
        spent.append(time.thread_time() - started)
        return result

    for room in range(2, 102):
        sender = timed(prefill.manager.create_sender, room)
        receiver = timed(decode.manager.create_receiver, "127.0.0.1", prefill.port, room)
        timed(receiver.init)
        until_state(receiver, KVPoll.WaitingForInput)
        timed(receiver.send_metadata, indices(5), 1)
        until_state(sender, KVPoll.WaitingForInput)
        timed(sender.init, 1, 0)
        timed(sender.send, indices(1), num_kv_tokens=16)
        until_state(receiver, KVPoll.Success)
        until_state(sender, KVPoll.Success)
        timed(sender.clear)
        timed(receiver.clear)
    assert sorted(spent)[len(spent) // 2] < 0.001


def test_a_thousand_requests_leave_nothing_behind(prefill: Prefill, decode: Decode) -> None:
    for room in range(1, 101):
        transfer(prefill, decode, room)
    gc.collect()
    process = psutil.Process()
    before = process.num_fds(), process.num_threads()
    for room in range(101, 1101):
        transfer(prefill, decode, room)
    until(lambda: decode.manager.gauges()["kv_rooms"] == 0)
    assert process.num_fds() <= before[0]
    assert process.num_threads() <= before[1]
    until(lambda: not decode.manager._receivers and not prefill.manager._senders)


def test_writers_and_sockets_of_decodes_that_left_are_closed(
    prefill: Prefill, decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pd_worker.transfer.sessions.FORGET_S", 1.0)
    monkeypatch.setattr("pd_worker.transfer.writer.IDLE_S", 0.5)
    transfer(prefill, decode, 1)
    process = psutil.Process()
    before = process.num_fds()
    for room in range(2, 12):
        guest = Decode()
        sender = prefill.manager.create_sender(room)
        receive(guest, prefill, room, (5,), 1)
        until_state(sender, KVPoll.WaitingForInput)
        guest.close()
        until(lambda s=sender: s.poll() == KVPoll.Failed)
        sender.clear()
    until(lambda: prefill.manager.gauges()["kv_sessions"] == 1)
    until(lambda: prefill.manager.gauges()["kv_writer_threads"] == 0)
    del guest
    gc.collect()  # the guests' pools
    until(lambda: process.num_fds() <= before)


def test_closing_prefill_tells_decode(prefill: Prefill, decode: Decode) -> None:
    transfer(prefill, decode, 1)
    receiver = receive(decode, prefill, 2, (5,), 1)
    prefill.manager.create_sender(2)
    sender = prefill.manager.create_sender(3)
    waiting = receive(decode, prefill, 3, (6,), 2)
    until_state(sender, KVPoll.WaitingForInput)
    prefill.manager.close()
    for end in (receiver, waiting):
        until(lambda e=end: e.poll() == KVPoll.Failed and e.drained, 5.0)
        assert "shutting down" in end.failure() or "died" in end.failure()


def test_closing_decode_tells_prefill(prefill: Prefill, decode: Decode) -> None:
    sender = prefill.manager.create_sender(1)
    receive(decode, prefill, 1, (5,), 1)
    until_state(sender, KVPoll.WaitingForInput)
    decode.manager.close()
    until(lambda: sender.poll() == KVPoll.Failed, 2.0)
    assert "shutting down" in sender.failure()


def test_a_closed_manager_may_be_called(prefill: Prefill, decode: Decode) -> None:
    receiver = receive(decode, prefill, 1, (5,), 1)
    sender = prefill.manager.create_sender(1)
    until_state(sender, KVPoll.WaitingForInput)
    for worker in (decode, prefill):
        worker.manager.close()
        worker.manager.close()
    receiver.abort("late")
    receiver.clear()
    sender.abort("late")
    sender.clear()


def test_a_dead_control_thread_is_a_problem(prefill: Prefill) -> None:
    assert prefill.manager.problem() == ""
    control = prefill.manager.control
    control.call(control._stop.set)
    until(lambda: "control thread has ended" in prefill.manager.problem())


def test_an_idle_pair_costs_next_to_nothing(prefill: Prefill, decode: Decode) -> None:
    transfer(prefill, decode, 1)
    threads = [t.native_id for t in threading.enumerate() if t.name == "kv-control"]
    assert len(threads) == 2

    def used() -> float:
        return sum(
            t.user_time + t.system_time for t in psutil.Process().threads() if t.id in threads
        )

    before = used()
    time.sleep(3.0)
    assert (used() - before) / 3.0 < 0.05


def test_more_pages_than_announced_are_our_own_fault(prefill: Prefill, decode: Decode) -> None:
    sender = prefill.manager.create_sender(1)
    receive(decode, prefill, 1, (5, 6), 1)
    until_state(sender, KVPoll.WaitingForInput)
    sender.init(2, 0)
    with pytest.raises(IntegrityError):
        sender.send(indices(1, 2, 3), num_kv_tokens=48)
    with pytest.raises(IntegrityError):
        sender.send(indices(64), num_kv_tokens=16)


@pytest.mark.parametrize(
    ("pages", "slot"), [((64,), 0), ((5, 5), 0), ((-1,), 0), ((5,), 16)], ids=str
)
def test_pages_outside_the_pools_are_our_own_fault(
    pages: tuple[int, ...], slot: int, prefill: Prefill, decode: Decode
) -> None:
    with pytest.raises(IntegrityError):
        receive(decode, prefill, 1, pages, slot)


@pytest.mark.parametrize("host", ["no-such-host.invalid", "0.0.0.0", "192.0.2.1"])
def test_an_advertised_address_that_is_not_ours_is_an_error_at_start(host: str) -> None:
    pool = Pool.private()
    with pytest.raises(TransferError, match=host):
        DecodeKVManager(pool.args(), [build_engine("fake")], options(host=host), wake=lambda: None)


def test_no_engine_is_an_error_at_start() -> None:
    with pytest.raises(BackendUnavailable):
        PrefillKVManager(
            Pool.private().args(), [], options(), wake=lambda: None, bootstrap_url="http://x"
        )

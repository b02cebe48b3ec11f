"""Rooms that fail: both ends hear of it at once, and no page is reused while it may be written."""

from __future__ import annotations

import threading
import time

import pytest

from pd_worker.errors import TransferError
from pd_worker.transfer.base import BaseKVReceiver, BaseKVSender
from pd_worker.transfer.engines.fake import TamperedEngine
from pd_worker.transfer.poll import KVPoll
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

STAGES = ("unmatched", "matched", "first chunk", "writing")


class Gate:
    """Holds up writes while it is closed."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.waiting = 0
        self.error = ""

    def __call__(self, session: str) -> bool:
        self.waiting += 1
        self._open.wait(30)
        self.waiting -= 1
        if self.error:
            raise TransferError(self.error)
        return True

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def gated(gate: Gate, start_prefill: Factory) -> Prefill:
    return start_prefill(wrap=lambda engine: TamperedEngine(engine, gate))


def both(
    prefill: Prefill, decode: Decode, gate: Gate, stage: str, room: int
) -> tuple[BaseKVSender, BaseKVReceiver]:
    """A request at some stage of its life."""
    sender = prefill.manager.create_sender(room)
    if stage == "unmatched":
        receiver = decode.manager.create_receiver("127.0.0.1", prefill.port, room)
        receiver.init()
        until_state(receiver, KVPoll.WaitingForInput)
        return sender, receiver
    receiver = receive(decode, prefill, room, (5, 6, 7), 1)
    until_state(sender, KVPoll.WaitingForInput)
    sender.init(3, 0)
    if stage == "writing":
        gate.close()
    if stage in ("first chunk", "writing"):
        sender.send(indices(1), num_kv_tokens=16)
    if stage == "writing":
        until(lambda: gate.waiting == 1)
    return sender, receiver


def baseline(worker: Prefill | Decode) -> bool:
    gauges = worker.manager.gauges()
    names = ("kv_rooms", "kv_quarantined_rooms", "kv_draining_rooms", "kv_early_transfer_infos")
    return not any(gauges.get(name, 0) for name in names)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_an_abort_reaches_the_other_side_and_leaves_nothing(
    stage: str, side: str, gated: Prefill, decode: Decode, gate: Gate
) -> None:
    for room in range(1, 11):
        sender, receiver = both(gated, decode, gate, stage, room)
        (sender if side == "prefill" else receiver).abort("had enough")
        if side == "prefill" and stage == "unmatched":
            receiver.send_metadata(indices(3), 2)
        for end in (sender, receiver):
            until(lambda e=end: e.poll() == KVPoll.Failed, 1.0, "not told within 1 s")
            assert "had enough" in end.failure()
        gate.open()
        until(lambda s=sender, r=receiver: s.drained and r.drained, 2.0)
        sender.clear()
        receiver.clear()
    until(lambda: baseline(gated) and baseline(decode))
    transfer(gated, decode, 100)


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_pages_are_not_given_back_while_a_write_is_under_way(
    side: str, gated: Prefill, decode: Decode, gate: Gate
) -> None:
    sender, receiver = both(gated, decode, gate, "writing", 1)
    (sender if side == "prefill" else receiver).abort("had enough")
    until(lambda: sender.poll() == receiver.poll() == KVPoll.Failed)
    until(lambda: decode.manager.gauges()["kv_quarantined_pages"] == 3)
    time.sleep(1.5)  # longer than any repetition
    assert not sender.drained
    assert not receiver.drained
    gate.open()
    until(lambda: sender.drained and receiver.drained, 2.0)
    assert decode.manager.gauges()["kv_quarantined_pages"] == 0


def test_success_cannot_be_aborted(prefill: Prefill, decode: Decode) -> None:
    sender = prefill.manager.create_sender(1)
    receiver = receive(decode, prefill, 1, (5,), 1)
    until_state(sender, KVPoll.WaitingForInput)
    sender.init(1, 0)
    sender.send(indices(1), num_kv_tokens=16)
    until_state(receiver, KVPoll.Success)
    until_state(sender, KVPoll.Success)
    sender.abort("late")
    receiver.abort("late")
    assert sender.poll() == receiver.poll() == KVPoll.Success
    assert sender.drained
    assert receiver.drained


@pytest.mark.parametrize("first", ["refusal", "publication"])
def test_refusal_by_prefills_api_reaches_decode(
    first: str, prefill: Prefill, decode: Decode
) -> None:
    if first == "refusal":
        prefill.manager.reject("127.0.0.1", prefill.port, 1, "prompt too long")
        receiver = receive(decode, prefill, 1, (5,), 1)
    else:
        receiver = receive(decode, prefill, 1, (5,), 1)
        until(lambda: prefill.manager.gauges()["kv_early_transfer_infos"] == 1)
        prefill.manager.reject("127.0.0.1", prefill.port, 1, "prompt too long")
    until(lambda: receiver.poll() == KVPoll.Failed, 2.0)
    assert "prompt too long" in receiver.failure()
    until(lambda: receiver.drained, 2.0)


@pytest.mark.parametrize("first", ["refusal", "sender"])
def test_refusal_by_decodes_api_reaches_prefill(
    first: str, prefill: Prefill, decode: Decode
) -> None:
    if first == "refusal":
        decode.manager.reject("127.0.0.1", prefill.port, 1, "unknown model")
        transfer(prefill, decode, 2)  # the refusal has been heard before this ended
    sender = prefill.manager.create_sender(1)
    if first == "sender":
        decode.manager.reject("127.0.0.1", prefill.port, 1, "unknown model")
    until(lambda: sender.poll() == KVPoll.Failed, 2.0)
    assert "unknown model" in sender.failure()


def test_refusing_a_repeated_room_does_not_hurt_its_owner(prefill: Prefill, decode: Decode) -> None:
    sender = prefill.manager.create_sender(1)
    receiver = receive(decode, prefill, 1, (5,), 1)
    until_state(sender, KVPoll.WaitingForInput)
    prefill.manager.reject("127.0.0.1", prefill.port, 1, "taken")
    decode.manager.reject("127.0.0.1", prefill.port, 1, "taken")
    sender.init(1, 0)
    sender.send(indices(1), num_kv_tokens=16)
    until_state(receiver, KVPoll.Success)


def test_an_abort_before_the_prefill_is_known_is_delivered_later(
    prefill: Prefill, decode: Decode
) -> None:
    receiver = decode.manager.create_receiver("127.0.0.1", prefill.port, 1)
    receiver.init()
    receiver.abort("left early")
    assert receiver.drained
    sender = prefill.manager.create_sender(1)
    until(lambda: sender.poll() == KVPoll.Failed, 2.0)
    assert "left early" in sender.failure()


@pytest.mark.parametrize("count", [1, 2, 4])
def test_unequal_numbers_of_pages_fail_the_room(
    count: int, prefill: Prefill, decode: Decode
) -> None:
    sender = prefill.manager.create_sender(1)
    receiver = receive(decode, prefill, 1, (5, 6, 7), 1)
    until_state(sender, KVPoll.WaitingForInput)
    sender.init(count, 0)
    until(lambda: receiver.poll() == KVPoll.Failed, 1.0)
    assert f"decode published 3 pages, prefill has {count}" in receiver.failure()
    assert (decode.pool.kv == CANARY).all()


def test_one_failed_write_fails_its_request_and_no_other(
    gated: Prefill, decode: Decode, gate: Gate
) -> None:
    for round_ in range(10):
        transfer(gated, decode, 1000 + round_)
        sender, receiver = both(gated, decode, gate, "matched", 1 + round_)
        gate.error = "cable pulled"
        sender.send(indices(1), num_kv_tokens=16)
        until(lambda s=sender, r=receiver: s.poll() == r.poll() == KVPoll.Failed)
        gate.error = ""
        assert "cable pulled" in sender.failure()
        assert "cable pulled" in receiver.failure()
        until(lambda s=sender, r=receiver: s.drained and r.drained)
        sender.clear()
        receiver.clear()
    transfer(gated, decode, 5000)
    assert gated.manager.gauges()["kv_writer_threads"] == 1


def test_a_broken_write_keeps_pages_for_the_settle_time(
    gated: Prefill, decode: Decode, gate: Gate
) -> None:
    decode.manager.engines["shm"].settle_s = 1.0
    sender, receiver = both(gated, decode, gate, "matched", 1)
    gate.error = "cable pulled"
    sender.send(indices(1), num_kv_tokens=16)
    until(lambda: receiver.poll() == KVPoll.Failed)
    assert 0.5 < until(lambda: receiver.drained) < 3.0


def test_clearing_an_unfinished_room_aborts_it(prefill: Prefill, decode: Decode) -> None:
    sender = prefill.manager.create_sender(1)
    receiver = receive(decode, prefill, 1, (5,), 1)
    until_state(sender, KVPoll.WaitingForInput)
    receiver.clear()
    until(lambda: sender.poll() == KVPoll.Failed, 1.0)
    sender.clear()
    until(lambda: baseline(prefill) and baseline(decode))


@pytest.mark.parametrize("delay_s", [0.0, 0.002, 0.004])
def test_reused_pages_never_hold_bytes_of_an_aborted_request(
    delay_s: float, start_prefill: Factory, decode: Decode
) -> None:
    """A slow writer; abort A at any moment; give A's pages to B as soon as they are drained."""

    def slow(session: str) -> bool:
        time.sleep(delay_s)
        return True

    prefill = start_prefill(wrap=lambda engine: TamperedEngine(engine, slow))
    pages, rounds = (5, 6, 7, 8, 20, 22), 80
    for round_ in range(1, rounds + 1):
        prefill.pool.fill(range(10), 0xAA)
        doomed, end = _start(prefill, decode, round_, pages)
        until(lambda d=doomed, n=round_ % 7: d.poll() == KVPoll.Success or _written(decode, n))
        (doomed if round_ % 2 else end).abort("had enough")
        until(lambda d=doomed, e=end: d.poll() in (0, 4) and e.poll() in (0, 4) and e.drained)
        for page in pages:
            decode.pool.page(page)[:] = CANARY
        time.sleep(3 * delay_s)
        assert all((decode.pool.page(page) == CANARY).all() for page in pages)
        until(lambda d=doomed: d.drained)
        doomed.clear()
        end.clear()
        transfer(prefill, decode, 10_000 + round_, src=(1, 2, 3, 4, 8, 9), dst=pages)
        decode.pool.kv[:] = CANARY
    until(lambda: baseline(prefill) and baseline(decode))


def _start(
    prefill: Prefill, decode: Decode, room: int, pages: tuple[int, ...]
) -> tuple[BaseKVSender, BaseKVReceiver]:
    sender = prefill.manager.create_sender(room)
    receiver = receive(decode, prefill, room, pages, 1)
    until_state(sender, KVPoll.WaitingForInput)
    sender.init(len(pages), 0)
    for page in range(len(pages)):
        sender.send(indices(page), num_kv_tokens=16)
    return sender, receiver


def _written(decode: Decode, pages: int) -> bool:
    """Whether at least so many pages have arrived."""
    return sum(bool((decode.pool.page(page) == 0xAA).all()) for page in range(64)) >= pages


@pytest.mark.parametrize("timeout_s", [0.5, 1.0])
def test_prefill_waits_for_decodes_pages_as_long_as_told(
    timeout_s: float, start_prefill: Factory
) -> None:
    prefill = start_prefill(link=options(bootstrap_timeout_s=timeout_s))
    sender = prefill.manager.create_sender(7)
    took = until(lambda: sender.poll() == KVPoll.Failed)
    assert timeout_s * 0.9 < took < timeout_s * 1.1 + 0.4
    for word in ("room=7", "state=Bootstrapping", "TransferInfo"):
        assert word in sender.failure()


def test_decode_waits_for_prefill_as_long_as_told(start_decode: Factory) -> None:
    decode = start_decode(link=options(bootstrap_timeout_s=1.0))
    receiver = decode.manager.create_receiver("127.0.0.1", 1, 7)
    receiver.init()
    took = until(lambda: receiver.poll() == KVPoll.Failed)
    assert 0.9 < took < 1.5
    for word in ("room=7", "state=Bootstrapping", "prefill=127.0.0.1:1", "bootstrap server"):
        assert word in receiver.failure()


def test_decode_waits_for_the_last_byte_as_long_as_told(
    prefill: Prefill, start_decode: Factory
) -> None:
    decode = start_decode(link=options(transfer_timeout_s=1.0))
    sender = prefill.manager.create_sender(7)
    receiver = receive(decode, prefill, 7, (5,), 1)
    took = until(lambda: receiver.poll() == KVPoll.Failed)
    assert 0.9 < took < 1.5
    assert "room=7 state=Transferring" in receiver.failure()
    until(lambda: sender.poll() == KVPoll.Failed, 1.0)
    assert receiver.drained or until(lambda: receiver.drained, 2.0)


def test_a_write_that_never_ends_fails_its_room_in_time(
    gate: Gate, start_prefill: Factory, decode: Decode
) -> None:
    prefill = start_prefill(
        wrap=lambda engine: TamperedEngine(engine, gate), link=options(transfer_timeout_s=1.0)
    )
    sender, receiver = both(prefill, decode, gate, "writing", 1)
    until(lambda: sender.poll() == receiver.poll() == KVPoll.Failed, 2.0)
    assert "no last write within 1 s" in receiver.failure()
    assert not receiver.drained
    gate.open()
    until(lambda: receiver.drained, 2.0)


def test_pages_for_a_request_that_never_came_are_given_back(
    start_prefill: Factory, decode: Decode
) -> None:
    prefill = start_prefill(link=options(bootstrap_timeout_s=1.0))
    receiver = receive(decode, prefill, 7, (5,), 1)
    until(lambda: receiver.poll() == KVPoll.Failed, 3.0)
    assert "never arrived" in receiver.failure()
    until(lambda: receiver.drained, 1.0)


def test_an_abort_stops_a_long_chunk_at_the_next_write(
    gated: Prefill, decode: Decode, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pd_worker.transfer.session.WRITE_NBYTES", 1)
    sender = gated.manager.create_sender(1)
    receiver = receive(decode, gated, 1, range(20), 1)
    until_state(sender, KVPoll.WaitingForInput)
    sender.init(20, 0)
    gate.close()
    sender.send(indices(*range(20)), num_kv_tokens=320)
    until(lambda: gate.waiting == 1)
    receiver.abort("had enough")
    until(lambda: sender.poll() == KVPoll.Failed)
    gate.open()
    until(lambda: receiver.drained, 2.0)
    assert gated.manager.engines["shm"].writes == 1

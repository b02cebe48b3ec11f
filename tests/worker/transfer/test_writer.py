"""Every job that a writer took is done, so that whoever queued it hears of its end."""

from __future__ import annotations

import threading

import pytest

from pd_worker.errors import TransferError
from pd_worker.transfer.engines.fake import FakeEngine
from pd_worker.transfer.poll import KVPoll
from pd_worker.transfer.writer import Writer
from tests.worker.transfer.conftest import Factory
from tests.worker.transfer.harness import Decode, Prefill, indices, receive, until, until_state


def test_jobs_that_are_queued_when_it_stops_are_done_first() -> None:
    gate, done = threading.Event(), []

    def work(job: int) -> None:
        gate.wait(10)
        done.append(job)

    writer: Writer[int] = Writer("test", work)
    for job in (1, 2):
        assert writer.put(job)
    thread = writer.stop()
    assert not writer.put(3)
    gate.set()
    assert thread is not None
    thread.join(10)
    assert done == [1, 2]


class Stubborn(FakeEngine):
    """Cannot write and breaks its word about `reset`, once."""

    forgets = False

    def write(self, *_: object) -> None:
        raise TransferError("broken")

    def reset(self, session_id: str) -> None:
        if not self.forgets:
            self.forgets = True
            raise TransferError("cannot forget")


def test_a_failed_write_is_reported_though_the_engine_cannot_forget_its_peer(
    start_prefill: Factory, start_decode: Factory
) -> None:
    prefill: Prefill = start_prefill(kind="fake", wrap=lambda engine: Stubborn())
    decode: Decode = start_decode(kind="fake")
    sender = prefill.manager.create_sender(1)
    receiver = receive(decode, prefill, 1, (5,), 1)
    until_state(sender, KVPoll.WaitingForInput)
    sender.init(1, 0)
    sender.send(indices(1), num_kv_tokens=16)
    until(lambda: sender.poll() == KVPoll.Failed and sender.drained)
    until(lambda: receiver.poll() == KVPoll.Failed)
    assert "broken" in receiver.failure()


def test_a_room_that_fails_while_its_pages_are_published_is_no_fault_of_ours(
    prefill: Prefill, decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = decode.manager.create_receiver(prefill.link.host, prefill.port, 1)
    receiver.init()
    until_state(receiver, KVPoll.WaitingForInput)
    poll = receiver.poll

    def and_then_fail() -> int:
        state = poll()
        receiver.fail("the peer died")
        return state

    monkeypatch.setattr(receiver, "poll", and_then_fail)
    receiver.send_metadata(indices(5), 1)
    until(lambda: poll() == KVPoll.Failed and receiver.drained)

"""PD ≡ unified and nothing leaked, over random interleavings of steps, messages and failures."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from pd_worker.config import SchedulerConfig
from pd_worker.core.sampling_params import Grammar
from pd_worker.disagg.checksum import crc32_checksum, no_checksum
from pd_worker.disagg.consensus import SoloGroup
from pd_worker.disagg.decode import SchedulerDisaggregationDecodeMixin
from pd_worker.disagg.metadata import MetadataBuffers
from pd_worker.disagg.prefill import SchedulerDisaggregationPrefillMixin
from pd_worker.memory.allocator import PageAllocator
from pd_worker.memory.pools import DecodeReqToTokenPool
from pd_worker.memory.prefix_cache import NoPrefixCache, PrefixCache
from pd_worker.messages import AbortRequest, Bootstrap, Finish, GenerateRequest
from pd_worker.model.runner_fake import FakeKVPool, FakeRunner, fake_geometry
from pd_worker.scheduler.grammar_queue import GrammarQueue
from pd_worker.scheduler.request_memory import RequestMemory
from pd_worker.scheduler.scheduler import Scheduler
from tests.worker.disagg.loopback import LoopbackManager, Network
from tests.worker.scheduler.harness import ListChannel, alone, joined, make_memory, request

NUM_SLOTS = 8


class PrefillScheduler(SchedulerDisaggregationPrefillMixin, Scheduler):
    """As composed in launch/assembly.py."""


class DecodeScheduler(SchedulerDisaggregationDecodeMixin, Scheduler):
    """As composed in launch/assembly.py."""


class Pair:
    """A prefill and a decode scheduler over a Network."""

    def __init__(
        self, *, num_pages: int, page_size: int, chunk: int, max_running: int, checksum: bool
    ) -> None:
        memory, runner = make_memory(num_pages, page_size, NUM_SLOTS, PrefixCache)
        geometry = fake_geometry()
        pool = FakeKVPool(geometry.kv_layout(num_pages + 1, page_size))
        allocator = PageAllocator(num_pages + 1, page_size, on_free=pool.poison)
        rows = DecodeReqToTokenPool(max_running, 3, (num_pages + 1) * page_size)
        decode_memory = RequestMemory(rows, allocator, NoPrefixCache(), pool)
        decode_runner = FakeRunner(geometry, pool, num_rows=max_running + 4)
        self.network = Network(runner.kv_pool, pool, NUM_SLOTS)
        self.channels = ListChannel(), ListChannel()
        shared = {
            "config": SchedulerConfig(chunked_prefill_size=chunk, max_running_requests=max_running),
            "eos_ids": geometry.eos_ids,
            "vocab_size": geometry.vocab_size,
            "max_request_tokens": num_pages * page_size,
            "reserved_decode_tokens": 0,
            "group": SoloGroup(),
        }
        parts = [
            {
                "memory": own,
                "runner": run,
                "channel": channel,
                "grammars": GrammarQueue(lambda grammar: None, channel.wake),
                "metadata": MetadataBuffers(buffer, NUM_SLOTS),
                "manager": LoopbackManager(self.network, role),
                "checksum": crc32_checksum(run.kv_pool) if checksum else no_checksum,
                **shared,
            }
            for role, own, run, channel, buffer in zip(
                ("prefill", "decode"),
                (memory, decode_memory),
                (runner, decode_runner),
                self.channels,
                self.network.metadata,
                strict=True,
            )
        ]
        self.prefill = PrefillScheduler(**parts[0])
        self.decode = DecodeScheduler(rows=rows, **parts[1])

    def add(self, message: GenerateRequest, room: int) -> None:
        """Both legs get the request."""
        both = msgspec.structs.replace(message, bootstrap=Bootstrap("prefill", 8998, room))
        self.prefill.add(both)
        self.decode.add(both)

    def abort(self, leg: int, rid: str) -> None:
        """One leg is told that its client is gone."""
        self.channels[leg].inbox.append(AbortRequest(rid))

    def act(self, action: int) -> None:
        """One thing happens: a step of either scheduler or an event of the network."""
        scheduler = (self.prefill, self.decode)[action % 2]
        if action % 3 == 0:
            self.network.pump(action // 6)
        else:
            scheduler.receive(0)
            scheduler.step()

    def settle(self) -> None:
        """Go on until nothing is left to do; then nothing may be held."""
        for i in range(20_000):
            self.act(i)
            busy = self.prefill.busy() or self.decode.busy()
            if not busy and not any(room.events for room in self.network.rooms.values()):
                break
        for scheduler in (self.prefill, self.decode):
            assert not scheduler.busy(), (self.prefill, self.decode)
            scheduler.memory.check_integrity([])
        self.prefill.draining._slots.check_integrity(0)
        self.decode.draining._slots.check_integrity(0)

    def answer(self, rid: str, leg: int = 1):
        return joined(self.channels[leg].outputs[rid])


REQUESTS = st.lists(
    st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.integers(0, 12)),
    min_size=1,
    max_size=8,
)
SIZES = {
    "num_pages": st.integers(12, 30),
    "page_size": st.just(4),
    "chunk": st.integers(1, 24),
    "max_running": st.integers(1, 4),
    "checksum": st.booleans(),
}


@settings(max_examples=60, deadline=None)
@given(requests=REQUESTS, actions=st.lists(st.integers(0, 10_000), max_size=80), **SIZES)
def test_pair_gives_the_tokens_of_the_unified_role(requests, actions, **sizes):
    pair = Pair(**sizes)
    messages = [
        request(f"r{i}", prompt, max_new_tokens=length, num_logprobs=1)
        for i, (prompt, length) in enumerate(requests)
    ]
    for i, message in enumerate(messages):
        pair.add(message, room=i + 1)
    for action in actions:
        pair.act(action)
    pair.settle()
    for message in messages:
        expected, got = alone(message), pair.answer(message.rid)
        assert got.token_ids == expected.token_ids
        assert got.logprobs == expected.logprobs
        assert got.reason == expected.reason
        assert got.cached_tokens == pair.answer(message.rid, leg=0).cached_tokens


@settings(max_examples=80, deadline=None)
@given(
    requests=REQUESTS,
    actions=st.lists(st.integers(0, 10_000), min_size=10, max_size=120),
    aborts=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 1), st.integers(0, 7))),
    **SIZES,
)
def test_aborts_at_any_moment_on_either_leg_spoil_nobody_elses_tokens(
    requests, actions, aborts, **sizes
):
    pair = Pair(**sizes)
    messages = [
        request(f"r{i}", prompt, max_new_tokens=length)
        for i, (prompt, length) in enumerate(requests)
    ]
    for i, message in enumerate(messages):
        pair.add(message, room=i + 1)
    for moment, action in enumerate(actions):
        for when, leg, index in aborts:
            if when == moment:
                pair.abort(leg, f"r{index % len(messages)}")
        pair.act(action)
    pair.settle()
    for message in messages:
        got = pair.answer(message.rid)
        if got.reason in ("stop", "length"):
            assert got.token_ids == alone(message).token_ids
        pair.answer(message.rid, leg=0)


def test_a_flipped_byte_is_caught_by_the_checksum():
    pair = Pair(num_pages=16, page_size=4, chunk=64, max_running=2, checksum=True)
    pair.add(request("r", list(range(1, 20))), room=1)
    while pair.network.room(1).decode.state < 4:
        for action in (3, 1, 2):
            pair.act(action)
        if pair.network.room(1).num_sent:
            while pair.network.pump(0):
                pass
            break
    pages = pair.network.room(1).pages
    pair.network.pools[1].words[pages[0]] ^= 1
    pair.settle()
    answer = pair.answer("r")
    assert answer.reason == "error"
    assert answer.token_ids == []


def test_a_room_is_used_once():
    pair = Pair(num_pages=16, page_size=4, chunk=64, max_running=2, checksum=False)
    pair.add(request("first", [1, 2, 3]), room=7)
    pair.add(request("second", [1, 2, 3]), room=7)
    pair.settle()
    assert pair.answer("second").reason == "error"
    assert pair.answer("first").token_ids == alone(request("first", [1, 2, 3])).token_ids


def test_refusal_on_one_leg_reaches_the_other_before_it_computes():
    pair = Pair(num_pages=16, page_size=4, chunk=64, max_running=2, checksum=False)
    good = request("r", [1] * 30, max_new_tokens=4)
    where = Bootstrap("prefill", 8998, 5)
    pair.prefill.add(msgspec.structs.replace(good, bootstrap=where))
    bad = request("r", [1] * 30, max_new_tokens=400)
    pair.decode.add(msgspec.structs.replace(bad, bootstrap=where))
    pair.settle()
    assert pair.answer("r", leg=0).reason == "error"
    assert pair.answer("r").token_ids == []


def test_a_leg_that_ends_before_its_handshake_tells_the_other():
    pair = Pair(num_pages=16, page_size=4, chunk=64, max_running=2, checksum=False)
    plain = request("r", [1] * 30, max_new_tokens=4)
    constrained = request("r", [1] * 30, grammar=Grammar("regex", "a"))
    where = Bootstrap("prefill", 8998, 5)
    pair.prefill.add(msgspec.structs.replace(plain, bootstrap=where))
    pair.decode.grammars.add = lambda req: None  # it is being compiled for ever
    pair.decode.add(msgspec.structs.replace(constrained, bootstrap=where))
    pair.abort(1, "r")
    pair.settle()
    assert pair.answer("r", leg=0).reason == "error"


def test_a_full_batch_takes_no_newcomer_while_a_launched_step_holds_the_row():
    pair = Pair(num_pages=16, page_size=4, chunk=64, max_running=1, checksum=False)
    for i in (1, 2):
        pair.add(request(f"r{i}", [i] * 3, max_new_tokens=9, ignore_eos=True), room=i)
    while not (len(pair.decode.running) and pair.decode.prebuilt_queue):
        for action in (0, 1, 2):
            pair.act(action)
    launched = pair.decode.next_batch()
    pair.decode.end(next(iter(pair.decode.running)), Finish("abort"))
    assert pair.decode.next_batch() is None
    pair.decode.process(launched, pair.decode.runner.forward(launched.forward))
    pair.settle()
    assert pair.answer("r2").token_ids


def test_requests_of_one_token_follow_each_other_without_waiting_to_be_woken():
    pair = Pair(num_pages=16, page_size=4, chunk=64, max_running=1, checksum=False)
    for i in range(1, 4):
        pair.add(request(f"r{i}", [i] * 3, max_new_tokens=1), room=i)
    while len(pair.decode.prebuilt_queue) < 3:
        pair.prefill.step()
        pair.network.pump(0)
        pair.decode.advance()
    rounds = 0
    while pair.decode.step():
        rounds += 1
    assert rounds == 3
    assert not pair.decode.live

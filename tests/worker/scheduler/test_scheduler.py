"""The unified scheduler: whatever shares its memory and steps, a request gets its own tokens."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pd_worker.memory.prefix_cache import NoPrefixCache, PrefixCache
from pd_worker.messages import AbortRequest, FlushCache, Shutdown
from tests.worker.scheduler.harness import Harness, alone, request

PROMPTS = st.lists(st.integers(1, 5), min_size=1, max_size=40)
REQUESTS = st.lists(st.tuples(PROMPTS, st.integers(1, 20)), min_size=1, max_size=10)


@settings(max_examples=60, deadline=None)
@given(
    requests=REQUESTS,
    num_pages=st.integers(16, 40),
    page_size=st.sampled_from([1, 4]),
    chunk=st.integers(1, 32),
    max_running=st.integers(1, 6),
    reserved=st.sampled_from([0, 4]),
    cached=st.booleans(),
    overlap=st.booleans(),
)
def test_tokens_do_not_depend_on_batching_chunks_retraction_or_cache(
    requests, num_pages, page_size, chunk, max_running, reserved, cached, overlap
):
    harness = Harness(
        num_pages=num_pages if page_size == 4 else num_pages * 4,
        page_size=page_size,
        chunk=chunk,
        max_running=max_running,
        reserved=reserved,
        cache=PrefixCache if cached else NoPrefixCache,
    )
    messages = [
        request(f"r{i}", prompt, max_new_tokens=length)
        for i, (prompt, length) in enumerate(requests)
    ]
    harness.add(*messages)
    answers = harness.run_overlapped() if overlap else harness.run()
    for message in messages:
        expected = alone(message, page_size)
        assert answers[message.rid].token_ids == expected.token_ids
        assert answers[message.rid].reason == expected.reason


def test_retraction_happens_and_leaves_no_trace():
    harness = Harness(num_pages=10, max_running=4, cache=NoPrefixCache)
    messages = [request(f"r{i}", [i + 1] * 6, max_new_tokens=25, ignore_eos=True) for i in range(4)]
    harness.add(*messages)
    answers = harness.run()
    assert harness.scheduler.running.num_retractions > 0
    for message in messages:
        assert answers[message.rid].token_ids == alone(message).token_ids


@pytest.mark.parametrize("steps", range(12))
def test_abort_at_any_moment_ends_once_and_frees_everything(steps):
    harness = Harness(num_pages=12, chunk=8, max_running=2)
    messages = [request(f"r{i}", [i + 1] * 20, max_new_tokens=20) for i in range(3)]
    harness.add(*messages)
    for _ in range(steps):
        harness.scheduler.step()
    harness.channel.inbox = [AbortRequest(message.rid) for message in messages]
    harness.scheduler.receive(0)
    harness.scheduler.flush()
    reasons = {answer.reason for answer in harness.answers().values()}
    assert reasons <= {"abort", "stop", "length"}
    harness.check_baseline()


def test_abort_during_a_chunk_leaves_nothing_in_the_prefix_cache():
    harness = Harness(chunk=8)
    harness.add(request("r", [1] * 30))
    harness.scheduler.step()
    harness.channel.inbox = [AbortRequest("r")]
    harness.scheduler.receive(0)
    assert harness.memory.cache.total_pages == 0


def test_equal_prefix_is_taken_from_the_cache_and_counted():
    harness = Harness(page_size=4)
    prompt = list(range(1, 31))
    harness.add(request("first", prompt))
    harness.run()
    harness.add(request("second", prompt))
    answers = harness.run()
    assert answers["second"].cached_tokens == 28
    assert answers["second"].token_ids == answers["first"].token_ids


def test_prompt_logprobs_come_from_the_whole_prompt_whatever_the_chunks():
    message = request("r", list(range(1, 40)), num_logprobs=2, prompt_logprobs=True)
    harness = Harness(chunk=7)
    harness.add(request("same", list(range(1, 40))))
    harness.run()
    harness.add(message)
    answer = harness.run()["r"]
    assert answer.cached_tokens == 0
    assert answer.prompt_logprobs[0] is None
    assert len(answer.prompt_logprobs) == 39
    assert answer.prompt_logprobs == alone(message).prompt_logprobs


@pytest.mark.parametrize("max_new_tokens", [0, 1, 2])
def test_exactly_max_new_tokens(max_new_tokens):
    harness = Harness()
    harness.add(request("r", [1, 2, 3], max_new_tokens=max_new_tokens, ignore_eos=True))
    answer = harness.run()["r"]
    assert len(answer.token_ids) == max_new_tokens
    assert answer.reason == "length"


def test_end_token_is_not_drawn_before_min_new_tokens():
    prompt = next(
        [seed] for seed in range(1, 512) if alone(request("r", [seed])).token_ids[-1] == 0
    )
    held = alone(request("r", prompt, min_new_tokens=8, max_new_tokens=9))
    assert 0 not in held.token_ids[:8]


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (request("r", [1] * 250, max_new_tokens=7), "max_new_tokens"),
        (request("r", []), "empty"),
        (request("r", [1], temperature=-1.0), "temperature"),
        (request("r", [1], stop_token_ids=(512,)), "stop_token_ids"),
    ],
    ids=["too long", "empty", "temperature", "stop id"],
)
def test_a_request_that_cannot_be_served_is_refused_at_once(message, named):
    harness = Harness()
    harness.add(message)
    harness.scheduler.flush()
    [output] = harness.channel.outputs["r"]
    assert output.finish.status == 400
    assert named in output.finish.message
    assert not harness.scheduler.busy()


def test_largest_request_that_is_accepted_comes_through():
    harness = Harness(num_pages=16, page_size=4, max_running=4)
    largest = request("large", [1] * 40, max_new_tokens=24, ignore_eos=True)
    harness.add(*(request(f"r{i}", [i + 2] * 9, max_new_tokens=20) for i in range(4)), largest)
    assert len(harness.run()["large"].token_ids) == 24


def test_a_full_queue_answers_429():
    harness = Harness(max_queued=2)
    harness.add(*(request(f"r{i}", [1, 2]) for i in range(3)))
    harness.scheduler.flush()
    assert harness.channel.outputs["r2"][0].finish.status == 429


def test_a_long_prompt_does_not_stop_those_that_decode():
    harness = Harness(num_pages=200, chunk=8, max_running=4)
    harness.add(request("short", [1, 2], max_new_tokens=40, ignore_eos=True))
    harness.scheduler.step()
    harness.add(request("long", [3] * 400, max_new_tokens=1))
    for _ in range(40):
        harness.scheduler.step()
    assert len(harness.channel.outputs["short"]) >= 20


def test_flush_drops_the_cache():
    harness = Harness()
    harness.add(request("r", list(range(1, 30))))
    harness.run()
    harness.channel.inbox = [FlushCache()]
    harness.scheduler.receive(0)
    assert harness.memory.cache.total_pages == 0


def test_seeded_sampling_does_not_depend_on_the_company():
    message = request("r", [5, 6, 7], temperature=1.0, seed=11, max_new_tokens=12)
    harness = Harness()
    harness.add(request("other", [1, 2, 3], temperature=1.0), message)
    assert harness.run()["r"].token_ids == alone(message).token_ids


def test_memory_of_an_ended_request_stays_until_its_launched_step_is_done():
    harness = Harness()
    harness.add(request("r", [1, 2, 3]))
    batch = harness.scheduler.next_batch()
    harness.channel.inbox = [AbortRequest("r")]
    harness.scheduler.receive(0)
    [req] = batch.reqs
    harness.memory.check_integrity([req])
    assert req.row >= 0
    harness.scheduler.process(batch, harness.runner.forward(batch.forward))
    harness.check_baseline()


def test_shutdown_ends_the_overlapped_loop_though_requests_run():
    harness = Harness()
    harness.add(request("r", [1, 2, 3], max_new_tokens=100, ignore_eos=True))
    rounds = iter([[]] * 5 + [[Shutdown()]] * 1000)
    harness.channel.receive = lambda timeout_s: next(rounds)
    harness.scheduler.event_loop_overlap()
    assert "r" in harness.scheduler.live
    assert not harness.scheduler.running.in_flight


def test_a_request_that_resumed_is_not_the_first_to_make_room_again():
    harness = Harness(num_pages=16, max_running=4, cache=NoPrefixCache)
    for i in range(3):
        harness.add(request(f"r{i}", [i + 1] * 3, max_new_tokens=50, ignore_eos=True))
        harness.scheduler.step()
    running = harness.scheduler.running
    oldest = next(iter(running))
    running._retract(oldest)
    assert running.pop_resumed() == [oldest]
    assert next(iter(running)) is oldest


@pytest.mark.parametrize("overlap", [False, True])
def test_busy_seconds_are_the_time_of_steps(overlap):
    harness = Harness()
    forward, steps_s = harness.runner.forward, []

    def timed(batch):
        began = time.monotonic()
        result = forward(batch)
        steps_s.append(time.monotonic() - began)
        return result

    harness.runner.forward = timed
    harness.add(request("r", [1, 2, 3], max_new_tokens=20, ignore_eos=True))
    began = time.monotonic()
    harness.run_overlapped() if overlap else harness.run()
    busy_s = harness.scheduler.counters()["busy_seconds"]
    assert len(steps_s) >= 20
    assert sum(steps_s) <= busy_s <= time.monotonic() - began

"""Who gets a request: the policies, the prefix table, the breaker. No network."""

from __future__ import annotations

from collections import Counter

import pytest

from pd_worker.router.breaker import Breaker
from pd_worker.router.call import draw_room
from pd_worker.router.policy import POLICIES, CacheAware, PowerOfTwo, RoundRobin
from pd_worker.router.prefixes import BLOCK, PrefixTable, chain
from pd_worker.router.prompt import Prompt, read_prompt
from pd_worker.router.worker import Worker, WorkerSpec


def workers(count: int, role="decode") -> list[Worker]:
    return [
        Worker(WorkerSpec(url=f"http://w{number}:1", role=role), Breaker(failures=2, cooldown_s=1))
        for number in range(count)
    ]


def prompt(units="") -> Prompt:
    return Prompt(units=units, batch=None, tokens=0)


def text(seed: int, blocks: int = 8) -> str:
    return (f"{seed:08d}" * (BLOCK // 8)) * blocks


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_uses_every_worker(name):
    policy, fleet = POLICIES[name](), workers(4)
    picked = Counter(policy.pick(fleet, prompt(text(number))) for number in range(400))
    assert set(picked) == set(fleet)
    assert min(picked.values()) > 40


def test_round_robin_is_even_also_when_the_fleet_changes():
    policy, fleet = RoundRobin(), workers(3)
    assert [policy.pick(fleet, prompt()) for _ in range(6)] == fleet * 2
    assert policy.pick(fleet[1:], prompt()) is fleet[1]
    assert policy.pick(fleet, prompt()) is fleet[0]


def test_power_of_two_never_picks_the_busiest():
    policy, fleet = PowerOfTwo(), workers(4)
    fleet[2].requests = 5
    assert fleet[2] not in {policy.pick(fleet, prompt()) for _ in range(200)}


def test_load_is_tokens_on_prefill_and_requests_on_decode():
    (prefill,), (decode,) = workers(1, "prefill"), workers(1, "decode")
    for worker in (prefill, decode):
        worker.requests, worker.tokens = 1, 500
    assert prefill.load == (500, 1)
    assert decode.load == (1, 500)


@pytest.mark.parametrize("kind", ["text", "ids"])
def test_cache_aware_follows_the_beginning_of_the_prompt(kind):
    policy, fleet = CacheAware(), workers(4, "prefill")
    start = text(1) if kind == "text" else list(range(BLOCK * 8))
    more = "more " * 20 if kind == "text" else [7] * 100
    first = policy.pick(fleet, prompt(start))
    assert {policy.pick(fleet, prompt(start + more)) for _ in range(20)} == {first}


def test_cache_aware_leaves_a_worker_that_is_much_busier():
    policy, fleet = CacheAware(), workers(3)
    first = policy.pick(fleet, prompt(text(1)))
    first.requests = CacheAware.SLACK_REQUESTS + 1
    assert policy.pick(fleet, prompt(text(1))) is not first


def test_cache_aware_forgets_a_worker_that_was_restarted():
    table = PrefixTable(100)
    blocks = chain(text(1))
    table.add(blocks, "http://w:1#one")
    assert table.match(blocks, ["http://w:1#two"]) == {}


def test_cache_aware_spreads_a_shared_but_small_beginning():
    policy, fleet = CacheAware(), workers(4)
    picked = {policy.pick(fleet, prompt(text(0, 1) + text(number, 9))) for number in range(1, 60)}
    assert picked == set(fleet)


def test_the_prefix_table_is_bounded_and_keeps_beginnings_longest():
    table = PrefixTable(1000)
    shared = text(0, 4)
    for number in range(1, 2000):
        table.add(chain(shared + text(number, 4)), f"w{number % 50}")
        assert len(table) <= 1000
    assert len(table) == 1000
    assert table.match(chain(shared), ["w49"]) == {"w49": 4}
    assert all(len(owners) <= 8 for owners in table._owners.values())


def test_hashes_cover_the_whole_beginning():
    one, other = chain(text(1) + text(2)), chain(text(3) + text(2))
    assert not set(one) & set(other)
    assert chain("x" * (BLOCK - 1)) == []
    assert chain([]) == []


@pytest.mark.parametrize(
    ("body", "units", "batch", "tokens"),
    [
        pytest.param({"prompt": "abcdefgh"}, "abcdefgh", None, 2, id="text"),
        pytest.param({"prompt": [1, 2, 3]}, [1, 2, 3], None, 3, id="ids"),
        pytest.param({"prompt": ["abcd", "efgh"]}, "abcd", 2, 2, id="texts"),
        pytest.param({"input_ids": [[1], [2, 3]]}, [1], 2, 3, id="nested ids"),
        pytest.param({"text": "abcd", "input_ids": None}, "abcd", None, 1, id="null beside it"),
        pytest.param({"prompt": {"odd": 1}}, "", None, 0, id="odd"),
        pytest.param({}, "", None, 0, id="none"),
        pytest.param(
            {"messages": [{"role": "u", "content": [{"type": "text", "text": "hello"}]}, 5]},
            "u\nhello",
            None,
            1,
            id="parts",
        ),
    ],
)
def test_prompts_are_read_from_every_shape(body, units, batch, tokens):
    read = read_prompt(body)
    assert (read.units, read.batch, read.tokens) == (units, batch, tokens)


def test_rooms_are_63_bits_and_never_zero():
    rooms = [draw_room() for _ in range(10_000)]
    assert len(set(rooms)) == 10_000
    assert min(rooms) > 0
    assert 2**62 < max(rooms) < 2**63


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def breaker(clock) -> Breaker:
    return Breaker(failures=3, cooldown_s=1, clock=clock)


def fail(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        breaker.begin()
        breaker.failure()


def test_a_success_between_failures_keeps_the_breaker_closed(breaker):
    for _ in range(10):
        fail(breaker, 2)
        breaker.begin()
        breaker.success()
    assert breaker.state == "closed"


def test_an_open_breaker_lets_one_request_try_after_the_pause(breaker, clock):
    fail(breaker, 3)
    assert (breaker.state, breaker.allows) == ("open", False)
    clock.now = 1.0
    assert breaker.wants_probe
    breaker.begin()
    assert not breaker.allows
    breaker.success()
    assert (breaker.state, breaker.allows) == ("closed", True)


def test_each_failed_try_doubles_the_pause_up_to_a_bound(breaker, clock):
    fail(breaker, 3)
    pauses = []
    for _ in range(6):
        start = clock.now
        while not breaker.allows:
            clock.now += 0.5
        pauses.append(clock.now - start)
        fail(breaker)
    assert pauses == [1, 2, 4, 8, 8, 8]


def test_a_try_without_a_verdict_leaves_room_for_the_next(breaker, clock):
    fail(breaker, 3)
    clock.now = 1.0
    breaker.begin()
    breaker.neutral()
    assert breaker.wants_probe


def test_late_failures_of_older_requests_do_not_lengthen_the_pause(breaker, clock):
    for _ in range(6):
        breaker.begin()
    for _ in range(6):
        breaker.failure()
    clock.now = 1.0
    assert breaker.wants_probe

"""Scale-down: victims leave the router, finish, and only then the replicas follow."""

from __future__ import annotations

import pytest

from pd_operator.drain import SETTLE_S, SILENCE_S, Drain, drain
from pd_operator.fleet import Fleet, State, Worker
from pd_operator.metrics import WorkerLoad

TIMEOUT_S = 300.0


def fleet(*since: float | None, state: State = "ready") -> Fleet:
    """Workers by the time at which each was marked."""
    workers = tuple(
        Worker(ordinal=ordinal, new=True, key="k", state=state, draining_since=at)
        for ordinal, at in enumerate(since)
    )
    return Fleet(replicas=len(workers), workers=workers)


def idle(at: float, busy: float | None = 0) -> WorkerLoad:
    return WorkerLoad(at=at, busy=busy)


def step(found: Fleet, wanted: int, now: float = 0.0, **loads: WorkerLoad) -> Drain:
    by_ordinal = {int(name[1:]): load for name, load in loads.items()}
    return drain(found, wanted, by_ordinal, timeout_s=TIMEOUT_S, now=now)


def test_victims_are_marked_first_and_stay():
    assert step(fleet(None, None, None, None), 2) == Drain(replicas=4, mark=(2, 3), waits=True)


@pytest.mark.parametrize(
    ("now", "load", "goes"),
    [
        (20, idle(2), False),
        (20, idle(SETTLE_S), True),
        (20, idle(15, busy=1), False),
        (299, idle(290, busy=1), False),
        (300, idle(299, busy=1), True),
        (20, idle(-1), False),
        (SILENCE_S, idle(-1), True),
        (SILENCE_S, idle(15, busy=None), True),
    ],
    ids=[
        "read too early", "nothing left", "a stream runs", "still runs", "time is up",
        "not read since", "silent", "gives no numbers",
    ],
)  # fmt: skip
def test_a_marked_worker_goes_when_it_is_done(now, load, goes):
    assert step(fleet(None, 0.0), 1, now, w1=load).replicas == (1 if goes else 2)


@pytest.mark.parametrize(("now", "left"), [(SETTLE_S - 1, 2), (SETTLE_S, 1)])
def test_nothing_is_waited_for_where_nobody_asks_the_workers(now, left):
    assert drain(fleet(None, 0.0), 1, None, timeout_s=TIMEOUT_S, now=now).replicas == left


def test_workers_go_from_the_top_and_none_out_of_turn():
    marked = fleet(None, 0.0, 0.0, 0.0)
    done, busy = idle(10), idle(10, busy=2)
    assert step(marked, 1, 12, w1=done, w2=busy, w3=done).replicas == 3
    assert step(marked, 1, 12, w1=done, w2=done, w3=busy).replicas == 4


@pytest.mark.parametrize("state", ["starting", "pending", "broken"])
def test_worker_that_serves_nobody_goes_at_once(state):
    assert step(fleet(None, None, None, state=state), 1) == Drain(replicas=1)


def test_vacancies_and_ending_workers_hold_up_nothing():
    ending = Worker(ordinal=2, new=True, key="k", state="ready", terminating=True)
    found = Fleet(replicas=4, workers=(*fleet(None).workers, ending))
    assert step(found, 1).replicas == 1


def test_worker_that_is_wanted_again_is_given_back():
    assert step(fleet(None, 0.0, 0.0), 2, 3) == Drain(replicas=3, unmark=(1,), waits=True)
    assert step(fleet(None, 0.0, 0.0), 5, 3) == Drain(replicas=5, unmark=(1, 2))


def test_without_a_drain_time_they_go_at_once():
    assert drain(fleet(None, None), 1, {}, timeout_s=0, now=0.0).replicas == 1


def test_more_workers_need_no_drain():
    assert step(fleet(None), 3) == Drain(replicas=3)

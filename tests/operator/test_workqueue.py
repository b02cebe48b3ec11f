"""The work queue: de-duplication, delays, back-off, under a clock that tests move."""

from __future__ import annotations

import asyncio

import pytest

from pd_operator.resource import Key
from pd_operator.workqueue import LONGEST_BACKOFF_S, WorkQueue

A, B = Key("n", "a"), Key("n", "b")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def queue(clock: Clock) -> WorkQueue:
    return WorkQueue(clock)


async def taken(queue: WorkQueue) -> Key | None:
    """The next key, or None where none is due."""
    try:
        return await asyncio.wait_for(queue.get(), 0.02)
    except TimeoutError:
        return None


async def test_a_key_is_in_it_once(queue: WorkQueue) -> None:
    for _ in range(3):
        queue.add(A)
    assert await taken(queue) == A
    queue.done(A)
    assert await taken(queue) is None


async def test_a_key_in_work_comes_again_only_afterwards(queue: WorkQueue) -> None:
    queue.add(A)
    assert await taken(queue) == A
    queue.add(A)
    queue.add(B)
    assert await taken(queue) == B
    assert await taken(queue) is None
    queue.done(A)
    assert await taken(queue) == A


async def test_the_earlier_wish_wins(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A, 50)
    queue.add(A, 5)
    queue.add(A, 20)
    clock.now += 5
    assert await taken(queue) == A
    queue.done(A)
    clock.now += 100
    assert await taken(queue) is None


async def test_done_looks_again_after_a_while(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    await taken(queue)
    queue.done(A, 30)
    assert await taken(queue) is None
    clock.now += 30
    assert await taken(queue) == A


async def test_failures_wait_longer_each_time_up_to_a_bound(queue: WorkQueue, clock: Clock) -> None:
    pauses = []
    queue.add(A)
    for _ in range(12):
        assert await taken(queue) == A
        pauses.append(queue.failed(A))
        clock.now += pauses[-1]
    assert pauses[0] < 1 < pauses[3] < pauses[6]
    assert max(pauses) <= 1.2 * LONGEST_BACKOFF_S
    await taken(queue)
    queue.done(A)
    queue.add(A)
    await taken(queue)
    assert queue.failed(A) < 1


async def test_a_change_does_not_wait_for_the_back_off(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    for _ in range(8):
        await taken(queue)
        clock.now += queue.failed(A)
    await taken(queue)
    queue.failed(A)
    queue.add(A)
    assert await taken(queue) == A


async def test_lag_is_that_of_the_most_overdue(queue: WorkQueue, clock: Clock) -> None:
    queue.add(A)
    queue.add(B, 100)
    clock.now += 7
    assert queue.lag_s == 7
    assert len(queue) == 2


async def test_a_long_queue_that_moves_is_not_stuck(queue: WorkQueue, clock: Clock) -> None:
    clock.now += 1000
    queue.begin()
    for key in (A, B):
        queue.add(key, -1000)
    clock.now += 7
    assert (queue.lag_s, queue.stuck_s) == (1007, 7)
    await taken(queue)
    assert (queue.lag_s, queue.stuck_s) == (1007, 0)
    await taken(queue)
    clock.now += 9
    assert queue.stuck_s == 0  # nothing is due


async def test_idle_while_nothing_is_due_or_in_work(queue: WorkQueue, clock: Clock) -> None:
    assert queue.idle
    queue.add(A, 50)
    assert (queue.idle, queue.lag_s) == (True, 0.0)
    clock.now += 50
    assert not queue.idle
    await taken(queue)
    assert not queue.idle
    queue.done(A, 10)
    assert queue.idle


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_is_never_lost(queue: WorkQueue, turns: int) -> None:
    queue.add(A, 90)
    waiting = asyncio.create_task(queue.get())
    for _ in range(3):
        await asyncio.sleep(0)
    queue.add(A, 50)  # wakes it, but is not due
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=2)
    assert waiting.cancelled()

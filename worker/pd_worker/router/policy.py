"""Who of several able workers gets a request: small classes behind one Protocol, one per role."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

from pd_worker.router.options import PolicyName
from pd_worker.router.prefixes import PrefixTable, chain
from pd_worker.router.prompt import Prompt
from pd_worker.router.worker import Worker


class Policy(Protocol):
    """Picks one of `workers`, which is never empty, and may remember that it did."""

    def pick(self, workers: Sequence[Worker], prompt: Prompt) -> Worker: ...


class Random:
    """Any of them."""

    def pick(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        return random.choice(workers)


class RoundRobin:
    """Each in turn: the one whose last turn is longest ago."""

    def __init__(self) -> None:
        self._turn = 0
        self._last: WeakKeyDictionary[Worker, int] = WeakKeyDictionary()

    def pick(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        chosen = min(workers, key=lambda worker: self._last.get(worker, 0))
        self._turn += 1
        self._last[chosen] = self._turn
        return chosen


class PowerOfTwo:
    """The less busy one of two that are drawn at random: nearly as even as the least busy one of
    all, without herding when several routers see the same loads."""

    def pick(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        drawn = random.sample(workers, min(2, len(workers)))
        return min(drawn, key=lambda worker: worker.load)


class CacheAware:
    """Whoever saw the longest equal beginning, if that spares half of the prompt or more and it is
    not much busier than the least busy worker, which is the choice otherwise."""

    MIN_SHARE = 0.5
    """Of the prompt's blocks; less is not worth an uneven load."""
    SLACK_REQUESTS = 8
    SLACK_RATIO = 1.5

    def __init__(self, max_blocks: int = 1 << 16) -> None:
        self._table = PrefixTable(max_blocks)

    def pick(self, workers: Sequence[Worker], prompt: Prompt) -> Worker:
        blocks = chain(prompt.units)
        least = min(workers, key=lambda worker: (worker.load, random.random()))
        chosen = self._warm(workers, blocks, least) or least
        self._table.add(blocks, chosen.identity)
        return chosen

    def _warm(
        self, workers: Sequence[Worker], blocks: Sequence[int], least: Worker
    ) -> Worker | None:
        depths = self._table.match(blocks, [worker.identity for worker in workers])
        best = max(depths.values(), default=0)
        if not blocks or best < self.MIN_SHARE * len(blocks):
            return None
        warm = [worker for worker in workers if depths.get(worker.identity) == best]
        chosen = min(warm, key=lambda worker: worker.load)
        limit = least.requests * self.SLACK_RATIO + self.SLACK_REQUESTS
        return chosen if chosen.requests <= limit else None


POLICIES: dict[PolicyName, type[Policy]] = {
    "random": Random,
    "round_robin": RoundRobin,
    "power_of_two": PowerOfTwo,
    "cache_aware": CacheAware,
}

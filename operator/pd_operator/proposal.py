"""How many replicas one role's own metrics ask for at this moment. Pure.

Two kinds of metric are told apart. A *share* (KV use, token rate, running requests, ITL) grows with
the load of a worker, so the total of all workers over the target is the number of workers. A
*pressure* (queues, TTFT) says only that there are too few, and nothing about how many would do: it
multiplies. Nothing at all multiplies while workers that were asked for are still starting.

How far a role may be lowered is learned: the token rate of a worker at which there were too few is
the limit below which fewer workers must stay. A pressure teaches it whenever it raises; a share
only when it takes back a lowering, which shows that the load of a worker grew faster than their
number fell. A pressure also lowers no further than the workers' idle time allows, and where nothing
is known by one worker, to see.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pd_operator.metrics import WorkerLoad

MetricType = Literal[
    "QueueDepth",
    "TTFT",
    "PrefillTokenRate",
    "KVUtilization",
    "ITL",
    "RunningRequests",
    "PreallocQueue",
    "TransferQueue",
]
PRESSURES: frozenset[MetricType] = frozenset(
    ("QueueDepth", "TTFT", "PreallocQueue", "TransferQueue")
)
MAX_FACTOR = 2.0
"""A role at most doubles in one step."""
HEADROOM = 0.9
"""Fewer workers must stay below this share of the learned limit."""
MAX_UTILIZATION = 0.8
"""Fewer workers must be busy for no larger share of the time."""
LIMIT_GROWTH_S = 86_400.0
"""A learned limit doubles within so long; the riskier a new try, the rarer it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A metric and the value that each worker should have of it, in the metric's own unit."""

    type: MetricType
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a worker was seen unable to bear."""

    at: float
    tokens_s: float
    """Tokens a second of one worker."""

    def now(self, now: float) -> float:
        """The limit that is worth trying: prompts change, and the last look may have been bad."""
        return self.tokens_s * (1 + (now - self.at) / LIMIT_GROWTH_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """A role as it is."""

    replicas: int
    """As asked for."""
    ready: int
    starting: int = 0
    unschedulable: int = 0
    loads: tuple[WorkerLoad, ...]
    """Of ready workers, fresh ones only."""

    @property
    def complete(self) -> bool:
        """Every ready worker told its load."""
        return len(self.loads) >= self.ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """What one metric asks for."""

    target: Target
    value: float
    """Mean over the workers."""
    replicas: int

    def __str__(self) -> str:
        return f"{self.target.type} is {self.value:.3g} of {self.target.value:.3g}"


FIELDS: dict[MetricType, str] = {
    "QueueDepth": "queue",
    "TTFT": "ttft_s",
    "PrefillTokenRate": "prompt_tokens_s",
    "KVUtilization": "kv_usage",
    "ITL": "itl_s",
    "RunningRequests": "running",
    "PreallocQueue": "prealloc_queue",
    "TransferQueue": "transfer_queue",
}
"""The field of WorkerLoad that holds a metric."""


def mean(loads: Sequence[WorkerLoad], name: str) -> float | None:
    """Of a field over the workers that gave it; None where none did."""
    values = [value for load in loads if (value := getattr(load, name)) is not None]
    return sum(values) / len(values) if values else None


def demand(workers: Workers, target: Target) -> float | None:
    """Mean value of a metric; None where no worker gave it.

    A full KV pool cannot show how much too small it is: what waits for it counts as well.
    """
    value = mean(workers.loads, FIELDS[target.type])
    if value is None or target.type != "KVUtilization":
        return value
    names = ("running", "transfer_queue", "prealloc_queue")
    running, unsent, waiting = (mean(workers.loads, name) or 0.0 for name in names)
    return value * (1 + waiting / max(running + unsent, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The fewest workers that metrics may lower to."""

    share: int
    pressure: int


def floor(workers: Workers, work: float | None, limit: float | None) -> Floor:
    """`work` is the token rate of a worker, `limit` one that it is known not to bear."""
    learned = work * workers.ready / (HEADROOM * limit) if work is not None and limit else None
    utilization = mean(workers.loads, "utilization")
    busy = utilization * workers.ready / MAX_UTILIZATION if utilization is not None else None
    known = [_ceil(value) for value in (learned, busy) if value is not None]
    return Floor(
        share=_ceil(learned or 0.0), pressure=max(known) if known else workers.replicas - 1
    )


def vote(target: Target, workers: Workers, *, tolerance: float, floor: Floor) -> Vote | None:
    """What `target` asks for; None where no worker gave its value."""
    value = demand(workers, target)
    if value is None:
        return None
    used = _used(value, target.value)
    if target.type in PRESSURES:
        replicas = _by_pressure(used, workers, tolerance, floor.pressure)
    else:
        replicas = _by_share(used, workers, tolerance, floor.share)
    most = workers.replicas * (1 if workers.starting else MAX_FACTOR)
    return Vote(target=target, value=value, replicas=min(replicas, _ceil(most)))


def _used(value: float, target: float) -> float:
    """The value as a multiple of the target; a target of 0 is met by 0 alone."""
    if target > 0:
        return value / target
    return MAX_FACTOR if value > 0 else 0.0


def _by_share(used: float, workers: Workers, tolerance: float, floor: int) -> int:
    needed = used * workers.ready
    if abs(needed / max(workers.replicas, 1) - 1) <= tolerance:
        return workers.replicas
    return _lowered(_ceil(needed), workers, floor)


def _by_pressure(used: float, workers: Workers, tolerance: float, floor: int) -> int:
    if used > 1 + tolerance:
        return _ceil(workers.replicas * used)
    return _lowered(0, workers, floor) if used < 1 - tolerance else workers.replicas


def _lowered(needed: int, workers: Workers, floor: int) -> int:
    """`needed`, but a lowering ends at the floor."""
    return max(needed, min(floor, workers.replicas))


def _ceil(value: float) -> int:
    """Up to the next integer; rounding errors add no worker."""
    return math.ceil(value - 1e-9)

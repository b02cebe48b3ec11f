"""Many pairs are made, and then nothing happens any more: what that costs a controller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contenders import Contender, LeaderWorkerSets, Operator
from benchmarks.stand import Counts, Stand, calm, kinds_of, reads, until
from benchmarks.usage import Meter, memory_mib

from pd_operator.cluster import Cluster
from tests.cluster.audit import Request

AT_ONCE = 16
"""Pairs that are requested at the same time."""
PARTS = ("kube-apiserver", "kube-controller-manager", "etcd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Creation:
    """What it cost to make many pairs. Seconds, but for the names that say otherwise."""

    pairs: int
    create_s: float
    """First to last request of ours."""
    applied_s: float
    """First request of ours to the last child."""
    cpu_applied_s: float
    cpu_settled_s: float
    """Of the controller, until it had nothing more to write."""
    parts_cpu_s: Mapping[str, float]
    """Of Kubernetes' own parts, meanwhile."""
    to_applied: Sequence[float]
    """For each pair: request to its last child."""
    to_status: Sequence[float]
    """For each pair: request to its first status."""
    writes: Counts
    """Accepted, by verb and resource."""
    reads: Counts
    own_count: float
    """Writes as the controller counts them itself; 0 where it does not."""
    memory_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What a controller did while there was nothing to do."""

    seconds: float
    writes: Counts
    reads: Counts
    cpu_s: float


def create(place: Stand, contender: Contender, numbers: range, *, pods: bool = True) -> Creation:
    """Create pairs and return when all of them are made and nothing more happens."""
    processes, pid = place.plane.processes, contender.pid
    pids = {part: found for part in PARTS if (found := processes.pid(part))}
    counted = _own_count(contender)
    began = time.time()
    with Meter(pids | {contender.user: pid}) as meter:
        asked = asyncio.run(_create_all(place, contender, numbers, pods=pods))
        wanted = {number: contender.children(number) for number in numbers}
        if not pods and isinstance(contender, LeaderWorkerSets):
            wanted = {n: {c for c in each if not c[1].endswith("-0")} for n, each in wanted.items()}
        missing = {child: number for number, each in wanted.items() for child in each}
        applied = _follow(place, contender, missing)
        settled = calm(place, contender)
        memory, _ = memory_mib(pid)
        counted = _own_count(contender) - counted
    writes = place.audit.writes(contender.user, began)
    statuses = _first_statuses(contender, writes)
    last = max(applied.values())
    return Creation(
        pairs=len(numbers),
        create_s=max(asked.values()) - began,
        applied_s=last - began,
        cpu_applied_s=meter.between(contender.user, began, last),
        cpu_settled_s=meter.between(contender.user, began, settled),
        parts_cpu_s={part: meter.between(part, began, settled) for part in pids},
        to_applied=[applied[n] - asked[n] for n in numbers],
        to_status=[statuses[n] - asked[n] for n in numbers if n in statuses],
        writes=kinds_of(writes),
        reads=kinds_of(reads(place, contender, began)),
        own_count=counted,
        memory_mib=memory,
    )


def silence(place: Stand, contender: Contender, seconds: float) -> Silence:
    """Watch a settled controller for so long."""
    began = time.time()
    with Meter({contender.user: contender.pid}) as meter:
        time.sleep(seconds)
        ended = time.time()
    place.audit.read()
    return Silence(
        seconds=seconds,
        writes=kinds_of(place.audit.writes(contender.user, began, ended)),
        reads=kinds_of(reads(place, contender, began)),
        cpu_s=meter.between(contender.user, began, ended + 1),
    )


async def _create_all(
    place: Stand, contender: Contender, numbers: range, *, pods: bool
) -> dict[int, float]:
    """When each pair was asked for, in seconds since the epoch."""
    cluster = await Cluster.connect(place.client.kubeconfig)
    asked: dict[int, float] = {}
    left = iter(numbers)

    async def some() -> None:
        for number in left:
            asked[number] = time.time()
            await cluster.create(contender.kind, contender.manifest(number, pods=pods))

    try:
        await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    finally:
        await cluster.close()
    return asked


def _follow(
    place: Stand, contender: Contender, missing: dict[tuple[str, str], int]
) -> dict[int, float]:
    """When the last child of each pair had been applied."""
    applied: dict[int, float] = {}

    def all_seen() -> bool:
        for request in place.audit.read():
            if request.user == contender.user and request.is_write and request.code < 400:
                number = missing.pop((request.resource, request.name), None)
                if number is not None:
                    applied[number] = max(request.at, applied.get(number, 0.0))
        return not missing

    until(all_seen)
    return applied


def _first_statuses(contender: Contender, writes: Sequence[Request]) -> dict[int, float]:
    first: dict[int, float] = {}
    resource = f"{contender.kind.plural}/status"
    for each in writes:
        if each.resource == resource:
            first.setdefault(int(each.name.rpartition("-")[2]), each.at)
    return first


def _own_count(contender: Contender) -> float:
    if not isinstance(contender, Operator):
        return 0.0
    return contender.metric("pdserve_operator_writes_total")

"""The steps of the operator's scale benchmark: a control plane, many pairs, silence, a restart.

Times are the API server's own: its audit log says when each request of a controller was answered.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import NAMESPACE, Contender, LeaderWorkerSets, Operator
from benchmarks.usage import Meter, memory_mib

from pd_operator.cluster import Cluster
from tests.cluster.audit import Audit, Request
from tests.cluster.binaries import ensure
from tests.cluster.client import Client
from tests.cluster.control_plane import ControlPlane, Ports

USERS = (Operator.user, LeaderWorkerSets.user)
AT_ONCE = 16
"""Pairs that are created at the same time."""
PATIENCE_S = 3600.0
POLL_S = 0.5
PARTS = ("kube-apiserver", "kube-controller-manager", "etcd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """A control plane that keeps an audit log of the controllers."""

    plane: ControlPlane
    client: Client
    audit: Audit
    calm_s: float
    """Without a write for so long a controller has settled."""


@contextmanager
def stand(*, controllers_per_s: int = 500, calm_s: float = 10.0) -> Iterator[Stand]:
    """A new one. Kubernetes' own controllers may do so many requests a second, each of them."""
    kube, helm = ensure("kube", "helm")
    state = Path(tempfile.mkdtemp(prefix="pdserve-scale-"))
    audit = Audit(folder=state / "audit")
    rate = (f"--kube-api-qps={controllers_per_s}", f"--kube-api-burst={controllers_per_s}")
    plane = ControlPlane(
        state=state / "plane",
        programs=kube,
        ports=Ports.free(),
        api_flags=audit.flags(USERS),
        manager_flags=rate,
    )
    try:
        plane.start()
        for user in USERS:
            plane.admit(user)
        client = Client(kubeconfig=plane.kubeconfig, programs=kube, helm_program=helm / "helm")
        client.kubectl("create", "namespace", NAMESPACE)
        yield Stand(plane=plane, client=client, audit=audit, calm_s=calm_s)
    finally:
        plane.stop()
        shutil.rmtree(state)


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
    writes: Mapping[str, int]
    """Accepted, by verb and resource."""
    reads: Mapping[str, int]
    own_count: float
    """Writes as the controller counts them itself; 0 where it does not."""
    memory_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """What a controller did while there was nothing to do."""

    seconds: float
    writes: Mapping[str, int]
    reads: Mapping[str, int]
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What it cost to start an operator where everything exists. Seconds since its start."""

    objects: int
    leads_s: float
    first_look_s: float
    changed_s: float
    """To its write for the deployment that was edited while it was down."""
    all_looked_s: float
    """Every deployment has been looked at once."""
    cpu_first_look_s: float
    cpu_s: float
    """Until everything has been looked at."""
    memory_mib: float
    peak_mib: float
    writes_changed: Mapping[str, int]
    writes_others: Mapping[str, int]
    """For deployments that nobody changed; should be none."""
    reads: Mapping[str, int]


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
        settled = _calm(place, contender)
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
        reads=kinds_of(_reads(place, contender, began)),
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
        reads=kinds_of(_reads(place, contender, began)),
        cpu_s=meter.between(contender.user, began, ended + 1),
    )


def restart(place: Stand, operator: Operator, numbers: range) -> Restart:
    """Stop the operator, edit one deployment, start it again, wait until it has seen all."""
    operator.stop()
    changed = f"pair-{numbers[len(numbers) // 2]:05}"
    patch = '{"spec": {"router": {"port": 9000}}}'
    target = ("pddeployment", changed, "-n", NAMESPACE)
    place.client.kubectl("patch", *target, "--type=merge", "-p", patch)
    operator.elected = True
    began = time.time()
    operator.launch()
    with Meter({operator.user: operator.pid}) as meter:
        first = _until(lambda: operator.looks >= 1)
        last = _until(lambda: operator.looks >= len(numbers))
        _calm(place, operator)
    memory, peak = memory_mib(operator.pid)
    writes = place.audit.writes(operator.user, began)
    own = [each for each in writes if each.name.startswith(changed) or not each.name]
    leases = place.audit.select(
        operator.user, lambda r: r.resource == "leases" and r.at > began and r.code in (200, 201)
        and r.verb in ("create", "update")
    )  # fmt: skip
    return Restart(
        objects=len(numbers),
        leads_s=leases[0].at - began,
        first_look_s=first - began,
        changed_s=min(each.at for each in own if each.name) - began,
        all_looked_s=last - began,
        cpu_first_look_s=meter.between(operator.user, 0.0, first),
        cpu_s=meter.between(operator.user, 0.0, last),
        memory_mib=memory,
        peak_mib=peak,
        writes_changed=kinds_of(own),
        writes_others=kinds_of([each for each in writes if each not in own]),
        reads=kinds_of(_reads(place, operator, began)),
    )


def kinds_of(requests: Sequence[Request]) -> Mapping[str, int]:
    """How many of each verb and resource, the most frequent first."""
    return dict(Counter(f"{each.verb} {each.resource}" for each in requests).most_common())


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

    _until(all_seen)
    return applied


def _calm(place: Stand, contender: Contender) -> float:
    """Wait until a controller writes no more; when its last write was."""

    last = time.time()

    def calm() -> bool:
        nonlocal last
        new = [r.at for r in place.audit.read() if r.user == contender.user and r.is_write]
        last = max([last, *new])
        return time.time() - last > place.calm_s

    _until(calm)
    return last


def _first_statuses(contender: Contender, writes: Sequence[Request]) -> dict[int, float]:
    first: dict[int, float] = {}
    resource = f"{contender.kind.plural}/status"
    for each in writes:
        if each.resource == resource:
            first.setdefault(int(each.name.rpartition("-")[2]), each.at)
    return first


def _reads(place: Stand, contender: Contender, since: float) -> list[Request]:
    verbs = ("get", "list", "watch")
    return place.audit.select(contender.user, lambda r: r.verb in verbs and r.at >= since)


def _own_count(contender: Contender) -> float:
    if not isinstance(contender, Operator):
        return 0.0
    return contender.metric("pdserve_operator_writes_total")


def _until(done: Callable[[], bool]) -> float:
    """Wait for a condition; when it was first seen to hold, in seconds since the epoch. It is
    asked seldom: who asks takes CPU time from who is measured."""
    end = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE_S:g} s")
        time.sleep(POLL_S)
    return time.time()

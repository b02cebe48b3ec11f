"""Where the operator is measured: a control plane whose audit log tells what each controller did.

Times are the API server's own: the log says when each request was answered.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import NAMESPACE, Contender, LeaderWorkerSets, Operator

from tests.cluster.audit import Audit, Request
from tests.cluster.binaries import ensure
from tests.cluster.client import Client
from tests.cluster.control_plane import ControlPlane, Ports

USERS = (Operator.user, LeaderWorkerSets.user)
UNNEEDED = (
    "endpoints-controller",
    "endpointslice-controller",
    "endpointslice-mirroring-controller",
)
"""Controllers of Kubernetes that are switched off: no pod has an address."""
PATIENCE_S = 3600.0
POLL_S = 0.5
Counts = Mapping[str, int]
"""Requests by verb and resource."""


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
    off = f"--controllers={','.join(f'-{each}' for each in UNNEEDED)}"
    plane = ControlPlane(
        state=state / "plane",
        programs=kube,
        ports=Ports.free(),
        api_flags=audit.flags(USERS),
        manager_flags=(*rate, off),
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


def kinds_of(requests: Sequence[Request]) -> Counts:
    """How many of each verb and resource, the most frequent first."""
    return dict(Counter(f"{each.verb} {each.resource}" for each in requests).most_common())


def calm(place: Stand, contender: Contender) -> float:
    """Wait until a controller writes no more; when its last write was."""

    last = time.time()

    def done() -> bool:
        nonlocal last
        new = [r.at for r in place.audit.read() if r.user == contender.user and r.is_write]
        last = max([last, *new])
        return time.time() - last > place.calm_s

    until(done)
    return last


def reads(place: Stand, contender: Contender, since: float) -> list[Request]:
    verbs = ("get", "list", "watch")
    return place.audit.select(contender.user, lambda r: r.verb in verbs and r.at >= since)


def until(done: Callable[[], bool]) -> float:
    """Wait for a condition; when it was first seen to hold, in seconds since the epoch. It is
    asked seldom: who asks takes CPU time from who is measured."""
    end = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {PATIENCE_S:g} s")
        time.sleep(POLL_S)
    return time.time()

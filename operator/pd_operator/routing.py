"""Which pods a router may find. Pure.

Every worker that drains is taken from the list that routers follow. Whether one is ready, some
routers find out by themselves; for the others a worker is on the list only while all of its pods
are, and by its first one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pd_operator import names
from pd_operator.drain import Drain
from pd_operator.engines import engine_of
from pd_operator.observed import Observed, Pod, timestamp
from pd_operator.resource import Resource
from pd_operator.roster import crews


@dataclass(frozen=True, slots=True, kw_only=True)
class Relabel:
    """What a pod should say of itself."""

    pod: Pod
    routable: bool
    drain_since: float | None

    @property
    def patch(self) -> dict[str, Any]:
        """Merge patch of the pod."""
        since = timestamp(self.drain_since) if self.drain_since is not None else None
        return {
            "metadata": {
                "labels": {names.ROUTABLE: str(self.routable).lower()},
                "annotations": {names.DRAIN_SINCE: since},
            }
        }


def relabels(
    resource: Resource, observed: Observed, drains: Mapping[names.Role, Drain], now: float
) -> Iterator[Relabel]:
    """Pods that say something else of themselves than they should."""
    for role in names.ROLES:
        for ordinal, pods in crews(resource, observed, role).items():
            since = _drain_since(pods[0], ordinal, drains.get(role, Drain()), now)
            listed = since is None and _reachable(resource, role, pods)
            for index, pod in enumerate(pods):
                first = index == 0 or engine_of(resource).self_routing
                wanted = Relabel(pod=pod, routable=listed and first, drain_since=since)
                told = (pod.routable, pod.drain_since)
                if not pod.terminating and told != (wanted.routable, wanted.drain_since):
                    yield wanted


def _drain_since(pod: Pod, ordinal: int, drain: Drain, now: float) -> float | None:
    if ordinal in drain.mark:
        return float(int(now))
    return None if ordinal in drain.unmark else pod.drain_since


def _reachable(resource: Resource, role: names.Role, pods: Sequence[Pod]) -> bool:
    if engine_of(resource).self_routing:
        return True
    ready = sum(pod.ready and not pod.terminating for pod in pods)
    return ready == resource.role(role).nodes_per_worker

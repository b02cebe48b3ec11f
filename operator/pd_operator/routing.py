"""Which pods a router may find, where it does not find that out by itself. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pd_operator import names
from pd_operator.engines import engine_of
from pd_operator.observed import Observed, Pod
from pd_operator.resource import Resource
from pd_operator.roster import crews


def relabels(resource: Resource, observed: Observed) -> Iterator[tuple[Pod, bool]]:
    """Pods whose label `routable` is wrong, and what it should say: the first pod of each worker
    all of whose pods are ready. Engines whose router looks for itself have it in the template."""
    if engine_of(resource).self_routing:
        return
    for role in names.ROLES:
        nodes = resource.role(role).nodes_per_worker
        for pods in crews(resource, observed, role).values():
            ready = sum(pod.ready and not pod.terminating for pod in pods) == nodes
            for index, pod in enumerate(pods):
                wanted = ready and index == 0 and pod.drain_since is None
                if pod.routable != wanted and not pod.terminating:
                    yield pod, wanted

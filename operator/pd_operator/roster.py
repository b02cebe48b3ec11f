"""Pods as workers: what rollout.py and scaling.py see of them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from pd_operator import names
from pd_operator.fleet import Fleet, State, Worker
from pd_operator.observed import Observed, Pod
from pd_operator.resource import Resource

NO_NODE = "InsufficientCapacity"


def crews(resource: Resource, observed: Observed, role: names.Role) -> dict[int, list[Pod]]:
    """A role's pods by the worker that they form, in order."""
    nodes, found = resource.role(role).nodes_per_worker, defaultdict(list)
    for pod in observed.pods.get(role, ()):
        if pod.ordinal >= 0:
            found[pod.ordinal // nodes].append(pod)
    return dict(sorted(found.items()))


def fleet_of(
    resource: Resource, observed: Observed, role: names.Role, template_hash: str, now: float
) -> Fleet:
    """The role's StatefulSet, counted in workers; `template_hash` is that of the wanted one."""
    workload, part = observed.workloads.get(role), resource.role(role)
    if workload is None:
        return Fleet()
    nodes, ready_s = part.nodes_per_worker, resource.spec.rollout.min_ready_seconds
    return Fleet(
        replicas=workload.replicas // nodes,
        partition=-(-workload.partition // nodes),
        current=workload.template_hash == template_hash,
        workers=tuple(
            Worker(
                ordinal=ordinal,
                new=all(pod.template_hash == template_hash for pod in pods),
                key=pods[0].pairing_hash,
                state=_state(pods, nodes, now - ready_s),
                terminating=any(pod.terminating for pod in pods),
                draining_since=pods[0].drain_since,
            )
            for ordinal, pods in crews(resource, observed, role).items()
        ),
    )


def _state(pods: Sequence[Pod], nodes: int, ready_before: float) -> State:
    reasons = {pod.reason for pod in pods if pod.reason}
    if reasons - {NO_NODE}:
        return "broken"
    if reasons:
        return "pending"
    ready = [pod for pod in pods if pod.ready_since is not None and pod.ready_since <= ready_before]
    return "ready" if len(ready) == nodes else "starting"


def unschedulable(pods: Sequence[Pod]) -> int:
    """Pods for which there is no node."""
    return sum(pod.reason == NO_NODE and not pod.terminating for pod in pods)

"""A deployment as a tree: roles, workers, and why something is not as it should be. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pd_operator import names
from pd_operator.objects.workers import template_hash
from pd_operator.observed import Pod
from pd_operator.plugin.facts import Facts
from pd_operator.plugin.table import table
from pd_operator.resource import Manifest
from pd_operator.roster import crews

GOOD = {"Reconciling": "False", "Stalled": "False"}
"""The status that a condition should have; True for all others."""


def overview(deployments: Sequence[Manifest]) -> str:
    """A line for each deployment."""
    rows = [["NAMESPACE", "NAME", "PHASE", "READY", "URL"]]
    for body in deployments:
        meta, status = body["metadata"], body.get("status", {})
        url = status.get("url", "-")
        rows.append(
            [
                meta["namespace"],
                meta["name"],
                status.get("phase", "-"),
                status.get("size", "-"),
                url,
            ]
        )
    return table(rows)


def tree(facts: Facts) -> Iterator[str]:
    """The lines of one deployment."""
    resource = facts.resource
    status = resource.status
    yield "  ".join(
        (
            resource.name,
            status.get("phase", "Unknown"),
            status.get("size", ""),
            status.get("url", ""),
        )
    ).rstrip()
    branches = [*_troubles(facts), *(list(_role(facts, role)) for role in names.ROLES)]
    if resource.spec.router.enabled:
        branches.append(list(_router(facts)))
    for index, branch in enumerate(branches):
        yield from _indented(branch, last=index == len(branches) - 1)


def _indented(branch: Sequence[str], *, last: bool) -> Iterator[str]:
    yield f"{'└─' if last else '├─'} {branch[0]}"
    for line in branch[1:]:
        yield f"{'   ' if last else '│  '} {line}".rstrip()


def _troubles(facts: Facts) -> Iterator[list[str]]:
    """Conditions that are not as they should be."""
    if not facts.resource.status:
        yield ["no status yet: is the operator running? try `kubectl pdd doctor`"]
    elif facts.resource.status.get("observedGeneration") != facts.resource.generation:
        yield ["the operator has not seen the latest change yet"]
    for name, condition in sorted(facts.conditions.items()):
        if condition["status"] not in (GOOD.get(name, "True"), "Unknown"):
            yield [
                f"{name} is {condition['status']}: {condition['reason']}: {condition['message']}"
            ]


def _role(facts: Facts, role: names.Role) -> Iterator[str]:
    resource, workload = facts.resource, facts.observed.workloads.get(role)
    name = names.workload(resource.name, role)
    if workload is None:
        yield f"{role}  StatefulSet {name} does not exist"
        return
    nodes, found = resource.role(role).nodes_per_worker, crews(resource, facts.observed, role)
    wanted = (resource.status.get(role) or {}).get("desired", workload.replicas // nodes)
    ready = sum(all(pod.ready for pod in pods) and len(pods) == nodes for pods in found.values())
    held = f"  partition {workload.partition}" if workload.partition else ""
    yield f"{role}  {ready}/{wanted} ready  StatefulSet {name}{held}"
    mark = template_hash(resource, role)
    rows = [_pod(facts, pod, mark) for pods in found.values() for pod in pods]
    yield from table(rows).splitlines() if rows else ["no pods"]


def _router(facts: Facts) -> Iterator[str]:
    workload = facts.observed.workloads.get("router")
    name = names.router(facts.resource.name)
    if workload is None:
        yield f"router  Deployment {name} does not exist"
        return
    yield f"router  {workload.ready}/{workload.replicas} ready  Deployment {name}"
    rows = [_pod(facts, pod, pod.template_hash) for pod in facts.observed.pods.get("router", ())]
    yield from table(rows).splitlines() if rows else ["no pods"]


def _pod(facts: Facts, pod: Pod, wanted: str) -> list[str]:
    revision = "" if pod.template_hash == wanted else "old revision"
    return [pod.name, state(pod), _node(facts, pod), pod.ip, revision]


def _node(facts: Facts, pod: Pod) -> str:
    found = (each for each in facts.pods if each["metadata"]["name"] == pod.name)
    return next(found, {}).get("spec", {}).get("nodeName") or "-"


def state(pod: Pod) -> str:
    """A pod's state in words."""
    if pod.terminating:
        return "ending"
    if pod.drain_since is not None:
        return "draining"
    if pod.ready:
        return "ready"
    first = pod.message.strip().splitlines()[:1]
    return ": ".join([pod.reason or "starting", *first])

"""From a deployment and what was observed to the writes that are due. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pd_operator import names
from pd_operator.decisions import Decisions
from pd_operator.desired import Choices, RoleChoice, creation, desired_state
from pd_operator.drift import drifted
from pd_operator.errors import ForeignObject
from pd_operator.kinds import SECRET, STATEFUL_SET, Kind
from pd_operator.observed import Observed, is_leftover, is_own
from pd_operator.resource import Manifest, Resource
from pd_operator.store import Store

Settled = Mapping[tuple[str, str], tuple[str, str]]
"""By kind and name: hash of what was wanted, and version of the object that was found good. After
it was applied that is so whatever it looks like: an API server that does not keep a field as we
send it is asked once, not for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A write of a StatefulSet's replicas."""

    role: names.Role
    pods: int
    version: str = ""
    """Only if the object is still at this version; empty: whatever it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The writes that are due, in this order."""

    claims: tuple[Scale, ...] = ()
    """Replicas that get an owner besides the one that made the object, at their present value."""
    applies: tuple[Manifest, ...] = ()
    scales: tuple[Scale, ...] = ()
    deletes: tuple[tuple[Kind, Manifest], ...] = ()
    settled: Settled = field(default_factory=dict)
    """Objects that are as wanted: they need no second look while they stay at this version."""
    leftovers: tuple[str, ...] = ()
    """Objects of an earlier deployment of this name, which must go first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What holds for all deployments."""

    optional_kinds: frozenset[str] = frozenset()
    operator_namespace: str = "pdserve-system"


def make_plan(
    resource: Resource,
    decisions: Decisions,
    observed: Observed,
    store: Store,
    around: Surroundings,
    settled: Settled,
) -> Plan:
    """Raises ForeignObject where a child's name is taken."""
    wanted = desired_state(resource, _choices(resource, decisions, observed, around))
    children = list(store.children(resource.key))
    live = {_name(manifest): manifest for _, manifest in children}
    due, leftovers, good = [], [], {}
    for manifest in wanted:
        known = live.get(_name(manifest))
        if known and not is_own(resource, known):
            leftovers.append(_leftover(resource, manifest, known))
        elif known is None:
            due.append(manifest)
        elif "deletionTimestamp" not in known["metadata"]:
            mark = _mark(manifest, known)
            if settled.get(_name(manifest)) != mark and drifted(manifest, known):
                due.append(manifest)
            else:
                good[_name(manifest)] = mark
    scales = tuple(_scales(decisions, observed))
    return Plan(
        claims=tuple(_claims(resource, due, observed, store)),
        applies=tuple(due),
        scales=scales,
        deletes=tuple(_surplus(resource, wanted, children)),
        settled=good,
        leftovers=tuple(leftovers),
    )


def _choices(
    resource: Resource, decisions: Decisions, observed: Observed, around: Surroundings
) -> Choices:
    roles: dict[names.Role, RoleChoice] = {}
    for role in names.ROLES:
        step = decisions.steps[role]
        made = observed.workloads.get(role) is not None
        pods = step.pods if step.pods is not None else creation(resource, role).replicas
        roles[role] = RoleChoice(partition=step.partition, replicas=None if made else pods)
    return Choices(
        roles=roles,
        optional_kinds=around.optional_kinds,
        operator_namespace=around.operator_namespace,
    )


def _name(manifest: Mapping[str, Any]) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _mark(manifest: Manifest, known: Manifest) -> tuple[str, str]:
    applied = manifest["metadata"]["annotations"][names.APPLIED_HASH]
    return applied, known["metadata"]["resourceVersion"]


def _leftover(resource: Resource, manifest: Manifest, known: Manifest) -> str:
    if is_leftover(resource, known):
        return " ".join(_name(manifest))
    raise ForeignObject(*_name(manifest))


def _claims(
    resource: Resource, due: list[Manifest], observed: Observed, store: Store
) -> Iterator[Scale]:
    """What is applied without replicas would lose those that the same manager applied before."""
    applied = {_name(manifest) for manifest in due}
    for role in names.ROLES:
        workload, name = observed.workloads.get(role), names.workload(resource.name, role)
        if workload is None or (STATEFUL_SET.name, name) not in applied:
            continue
        owners = workload.replicas_owners
        if names.FIELD_MANAGER in owners and names.REPLICAS_MANAGER not in owners:
            version = store.of(resource.key, STATEFUL_SET)[name]["metadata"]["resourceVersion"]
            yield Scale(role=role, pods=workload.replicas, version=version)


def _scales(decisions: Decisions, observed: Observed) -> Iterator[Scale]:
    for role in names.ROLES:
        step, workload = decisions.steps[role], observed.workloads.get(role)
        if workload and step.pods is not None and step.pods != workload.replicas:
            yield Scale(role=role, pods=step.pods)


def _surplus(
    resource: Resource, wanted: list[Manifest], children: list[tuple[Kind, Manifest]]
) -> Iterator[tuple[Kind, Manifest]]:
    """Our own children that are wanted no more."""
    names_wanted = {_name(manifest) for manifest in wanted}
    for kind, manifest in children:
        meta = manifest["metadata"]
        kept = kind == SECRET or (kind.name, meta["name"]) in names_wanted
        if not kept and "deletionTimestamp" not in meta and is_own(resource, manifest):
            yield kind, manifest


def replicas_manifest(resource: Resource, scale: Scale) -> Manifest:
    """What is applied to write replicas and nothing else."""
    meta = {"name": names.workload(resource.name, scale.role), "namespace": resource.namespace}
    if scale.version:
        meta["resourceVersion"] = scale.version
    return {
        "apiVersion": STATEFUL_SET.api_version,
        "kind": STATEFUL_SET.name,
        "metadata": meta,
        "spec": {"replicas": scale.pods},
    }

"""The status of a deployment, and the events that its changes are worth. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pd_operator import names
from pd_operator.api.markers import to_manifest
from pd_operator.api.status import Condition, Phase, RoleStatus, Status
from pd_operator.conditions import (
    NOT_LOOKED,
    Judgement,
    Verdict,
    no,
    rdma_ready,
    ready,
    ready_workers,
    role_available,
    router_available,
    yes,
)
from pd_operator.objects.services import url
from pd_operator.observed import Observed, Pod, dominant, timestamp
from pd_operator.ports import ports_of
from pd_operator.resource import Manifest, Resource
from pd_operator.roster import crews

ENDPOINTS = 64
ABNORMAL = ("Reconciling", "Stalled")
"""Conditions that are present only while they are True."""
WATCHED = ("Ready", "Stalled", "RolloutComplete", "RDMAReady", "KVTransferHealthy", "ScalingActive")
"""Conditions whose changes are worth an event."""
EXPECTED = ("Updating", "Starting", "Suspended", "Scheduled")
"""Reasons for a False that need nobody's attention."""
EXPECTED_AT_FIRST = (*EXPECTED, "NoWorkers", "NoRouter", "RouterSeesNoPair")
"""The same while nothing was rolled out yet: the parts of a new deployment come up one by one."""


def make_status(resource: Resource, observed: Observed, verdict: Verdict, now: float) -> Status:
    """What is to be stored; equal to what is stored while nothing has changed."""
    judged = _judge(resource, observed, verdict, now)
    roles = {role: _role(resource, observed, role, verdict) for role in names.ROLES}
    sizes = [
        f"{roles['prefill'].ready}P{roles['decode'].ready}D",
        f"{roles['prefill'].desired}P{roles['decode'].desired}D",
    ]
    prefill = observed.workloads.get("prefill")
    complete = judged["RolloutComplete"].truth == "True"
    return Status(
        observed_generation=resource.generation,
        phase=_phase(resource, judged, roles),
        size="/".join(sizes),
        url=url(resource),
        current_revision=verdict.revision if complete else resource.status.get("currentRevision"),
        update_revision=verdict.revision,
        prefill=roles["prefill"],
        decode=roles["decode"],
        router=_router(resource, observed),
        secret=resource.status.get("secret"),
        bootstrap_endpoints=_endpoints(resource, prefill.existing if prefill else 0),
        conditions=tuple(_conditions(resource.conditions, judged, resource.generation, now)),
    )


def _judge(
    resource: Resource, observed: Observed, verdict: Verdict, now: float
) -> dict[str, Judgement]:
    judged: dict[str, Judgement | None] = {
        "PrefillAvailable": role_available(
            resource, observed, "prefill", verdict.wanted["prefill"]
        ),
        "DecodeAvailable": role_available(resource, observed, "decode", verdict.wanted["decode"]),
        "RouterAvailable": router_available(resource, observed, now),
        "BootstrapReachable": verdict.bootstrap or NOT_LOOKED,
        "RDMAReady": rdma_ready(resource, observed),
        "KVTransferHealthy": verdict.transfers or NOT_LOOKED,
        "ScalingActive": verdict.scaling,
        "MonitoringActive": verdict.monitoring,
        "RolloutComplete": verdict.rollout,
        "Stalled": verdict.stalled,
    }
    present = {name: each for name, each in judged.items() if each}
    reached = verdict.rollout.truth == "True" or _reached_before(resource)
    present["Ready"] = ready(resource, present, reached)
    working = not reached and not verdict.stalled and not resource.spec.suspend
    if working:
        present["Reconciling"] = yes(verdict.rollout.reason, verdict.rollout.message)
    return present


def _reached_before(resource: Resource) -> bool:
    """True where this generation was complete once: a lost pod does not undo that."""
    stored = resource.conditions.get("RolloutComplete", {})
    return stored.get("status") == "True" and _same_generation(resource, stored)


def _same_generation(resource: Resource, condition: Mapping[str, Any]) -> bool:
    return bool(condition.get("observedGeneration") == resource.generation)


def _conditions(
    stored: Mapping[str, Mapping[str, Any]],
    judged: Mapping[str, Judgement],
    generation: int,
    now: float,
) -> Iterator[Condition]:
    """With the old transition time while the status stays the same."""
    for name in sorted(judged):
        judgement, before = judged[name], stored.get(name, {})
        same = before.get("status") == judgement.truth
        yield Condition(
            type=name,
            status=judgement.truth,
            observed_generation=generation,
            last_transition_time=before["lastTransitionTime"] if same else timestamp(now),
            reason=judgement.reason,
            message=judgement.message,
        )


def _phase(
    resource: Resource, judged: Mapping[str, Judgement], roles: Mapping[names.Role, RoleStatus]
) -> Phase:
    if resource.spec.suspend:
        return "Suspended"
    if "Stalled" in judged:
        return "Stalled"
    serving = all(roles[role].ready for role in names.ROLES)
    if "Reconciling" in judged:
        return "Updating" if serving else ("Provisioning" if _any(roles) else "Pending")
    short = any(part.ready < part.desired for part in roles.values())
    return "Ready" if judged["Ready"].truth == "True" and not short else "Degraded"


def _any(roles: Mapping[names.Role, RoleStatus]) -> bool:
    return any(part.replicas for part in roles.values())


def _role(resource: Resource, observed: Observed, role: names.Role, verdict: Verdict) -> RoleStatus:
    pods, wanted = observed.pods.get(role, ()), verdict.wanted[role]
    living = [crew for crew in crews(resource, observed, role).values() if not _leaving(crew)]
    ready_count = ready_workers(resource, observed, role)
    reason, _ = dominant(pods)
    new = verdict.templates[role]
    return RoleStatus(
        desired=wanted,
        replicas=len(living),
        ready=ready_count,
        updated=sum(all(pod.template_hash == new for pod in crew) for crew in living),
        draining=sum(map(_leaving, crews(resource, observed, role).values())),
        reason=(reason or "Starting") if ready_count < wanted else None,
        workload=names.workload(resource.name, role),
        selector=_selector(resource, role),
    )


def _leaving(crew: Sequence[Pod]) -> bool:
    return any(pod.terminating or pod.drain_since is not None for pod in crew)


def _router(resource: Resource, observed: Observed) -> RoleStatus | None:
    workload = observed.workloads.get("router")
    if not resource.spec.router.enabled or workload is None:
        return None
    return RoleStatus(
        desired=workload.replicas,
        replicas=workload.existing,
        ready=workload.ready,
        updated=workload.updated,
        draining=sum(pod.terminating for pod in observed.pods.get("router", ())),
        workload=names.router(resource.name),
        selector=_selector(resource, "router"),
    )


def _selector(resource: Resource, component: str) -> str:
    labels = names.selector(resource.name, component)
    return ",".join(f"{name}={value}" for name, value in labels.items())


def _endpoints(resource: Resource, pods: int) -> tuple[str, ...]:
    nodes = resource.spec.prefill.nodes_per_worker
    port = ports_of(resource, "prefill").bootstrap
    ordinals = range(0, min(pods, ENDPOINTS * nodes), nodes)
    return tuple(
        f"{names.pod_host(resource.name, 'prefill', ordinal, resource.namespace)}:{port}"
        for ordinal in ordinals
    )


def status_manifest(resource: Resource, status: Status) -> Manifest:
    """What is applied to the status subresource."""
    return _manifest(resource.namespace, resource.name, to_manifest(status))


def _manifest(namespace: str, name: str, status: Manifest) -> Manifest:
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name, "namespace": namespace},
        "status": status,
    }


def broken_status(body: Mapping[str, Any], problem: str, now: float) -> Manifest:
    """For a deployment whose spec is not understood: the children stay as they were, and so does
    what is told of them."""
    meta, stored = body["metadata"], body.get("status", {})
    before = {each["type"]: each for each in stored.get("conditions", [])}
    judged = {
        "Ready": no("InvalidSpec", problem),
        "Stalled": yes("InvalidSpec", f"{problem}; correct the spec"),
    }
    generation = meta.get("generation", 1)
    conditions = _conditions(before, judged, generation, now)
    kept = {"size": "0P0D/0P0D", **stored}
    told = {"observedGeneration": generation, "phase": "Stalled", "conditions": [*conditions]}
    return _manifest(meta["namespace"], meta["name"], to_manifest(kept | told))


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """An event."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


def news(resource: Resource, status: Status) -> list[News]:
    """One event for each watched condition that changed; a new one that is not True is none."""
    before, found = resource.conditions, []
    expected = EXPECTED if resource.status.get("currentRevision") else EXPECTED_AT_FIRST
    for condition in status.conditions:
        old = before.get(condition.type)
        if condition.type not in WATCHED or condition.status == "Unknown":
            continue
        if (old["status"], old["reason"]) == (condition.status, condition.reason) if old else False:
            continue
        if old is None and condition.status == "False":
            continue
        found.append(_news(condition, expected))
    return found


def _news(condition: Condition, expected: Sequence[str]) -> News:
    good = (condition.status == "True") != (condition.type in ABNORMAL)
    calm = good or condition.reason in expected
    told = f"{condition.type} is {condition.status}: {condition.message}"
    return News(type="Normal" if calm else "Warning", reason=condition.reason, message=told)

"""All children of a deployment, in the order in which they are applied. Pure.

`desired_state` is the operator's centre: what it returns is what `render` prints, what the golden
files hold and what reconcile makes true. It decides nothing about time: how far a rollout may go
and how many workers there should be comes in as Choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pd_operator import names
from pd_operator.objects.access import accounts
from pd_operator.objects.guards import budgets, network_policy, pod_monitor
from pd_operator.objects.meta import annotate, digest
from pd_operator.objects.router import deployment
from pd_operator.objects.scalers import scaler
from pd_operator.objects.services import services
from pd_operator.objects.workers import stateful_set
from pd_operator.resource import Manifest, Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleChoice:
    """What was decided about one role's StatefulSet."""

    partition: int = 0
    """Pods of lower ordinals keep their revision."""
    replicas: int | None = None
    """Pods at creation; None for a StatefulSet that exists, whose replicas are written apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What desired_state is told besides the spec."""

    roles: Mapping[names.Role, RoleChoice] = field(default_factory=dict)
    optional_kinds: frozenset[str] = frozenset()
    """Kinds beyond Kubernetes' own that the cluster knows: PodMonitor, ScaledObject."""
    operator_namespace: str = "pdserve-system"


def creation(resource: Resource, role: names.Role) -> RoleChoice:
    """For a StatefulSet that does not exist yet."""
    return RoleChoice(replicas=initial_pods(resource, role))


def initial_pods(resource: Resource, role: names.Role) -> int:
    """Pods that a role begins with: its replicas, within the scaler's bounds."""
    part = resource.role(role)
    if resource.spec.suspend:
        return 0
    workers = part.replicas
    if part.autoscaling:
        bounds = part.autoscaling
        workers = min(max(workers, bounds.min_replicas), bounds.max_replicas)
    return workers * part.nodes_per_worker


def desired_state(resource: Resource, choices: Choices) -> list[Manifest]:
    """The children, each with the hash of itself in an annotation. Without the Secret, which is
    made once and not from the spec."""
    sets = [_stateful_set(resource, role, choices) for role in names.ROLES]
    router = [deployment(resource)] if resource.spec.router.enabled else []
    children = [
        *accounts(resource),
        *services(resource),
        *sets,
        *router,
        *budgets(resource),
        *_optional(resource, choices),
    ]
    return [_hashed(manifest) for manifest in children]


def _stateful_set(resource: Resource, role: names.Role, choices: Choices) -> Manifest:
    choice = choices.roles.get(role) or creation(resource, role)
    return stateful_set(resource, role, partition=choice.partition, replicas=choice.replicas)


def _optional(resource: Resource, choices: Choices) -> list[Manifest]:
    spec, known = resource.spec, choices.optional_kinds
    found = []
    if spec.network_policy.enabled:
        found.append(network_policy(resource, choices.operator_namespace))
    scalers = [scaler(resource, role) for role in names.ROLES]
    found += [s for s in scalers if s and (s["kind"] != "ScaledObject" or s["kind"] in known)]
    if spec.monitoring.pod_monitor and "PodMonitor" in known:
        found.append(pod_monitor(resource))
    return found


def _hashed(manifest: Manifest) -> Manifest:
    """Replicas are left out: they are written apart once the object exists."""
    spec = {k: v for k, v in manifest.get("spec", {}).items() if k != "replicas"}
    counted = manifest if manifest["kind"] != "StatefulSet" else manifest | {"spec": spec}
    return annotate(manifest, **{names.APPLIED_HASH: digest(counted)})

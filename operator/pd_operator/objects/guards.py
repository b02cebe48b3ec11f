"""What protects a deployment: disruption budgets and the network policy."""

from __future__ import annotations

from collections.abc import Iterable

from pd_operator import names
from pd_operator.api.markers import IntOrPercent
from pd_operator.objects.meta import child
from pd_operator.ports import ports_of
from pd_operator.resource import Manifest, Resource

NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def budgets(resource: Resource) -> list[Manifest]:
    """One a role, and one for a router of several pods (for a single one it would block drains)."""
    roles = [
        _budget(resource, role, resource.role(role).disruption_budget.max_unavailable)
        for role in names.ROLES
    ]
    router = resource.spec.router
    several = router.enabled and router.replicas > 1
    return [*roles, _budget(resource, "router", 1)] if several else roles


def _budget(resource: Resource, component: str, max_unavailable: IntOrPercent) -> Manifest:
    spec = {
        "maxUnavailable": max_unavailable,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": names.selector(resource.name, component)},
    }
    name = names.workload(resource.name, component)
    return child(resource, "policy/v1", "PodDisruptionBudget", name, component, spec=spec)


def network_policy(resource: Resource, operator_namespace: str) -> Manifest:
    """The workers are reached by their own deployment, for metrics by scrapers, and by us, who ask
    the bootstrap servers as well."""
    own = {"podSelector": {"matchLabels": {names.DEPLOYMENT: resource.name}}}
    us = {"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: operator_namespace}}}
    http = {ports_of(resource, role).http for role in names.ROLES}
    bootstrap = {ports_of(resource, "prefill").bootstrap}
    ingress = [{"from": [own]}, {"from": [us], "ports": _tcp(http | bootstrap)}]
    if resource.spec.network_policy.scrapers is not None:
        scrapers = {"namespaceSelector": resource.spec.network_policy.scrapers}
        ingress.append({"from": [scrapers], "ports": _tcp(http)})
    workers = {"key": names.ROLE, "operator": "In", "values": list(names.ROLES)}
    spec = {
        "podSelector": {
            "matchLabels": {names.DEPLOYMENT: resource.name},
            "matchExpressions": [workers],
        },
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    name = names.worker_account(resource.name)
    return child(resource, "networking.k8s.io/v1", "NetworkPolicy", name, "worker", spec=spec)


def _tcp(ports: Iterable[int]) -> list[Manifest]:
    return [{"port": port, "protocol": "TCP"} for port in sorted(ports)]


def pod_monitor(resource: Resource) -> Manifest:
    """What Prometheus' operator scrapes: workers and router."""
    spec = {
        "selector": {"matchLabels": {names.DEPLOYMENT: resource.name}},
        "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": "15s"}],
        "podTargetLabels": [names.ROLE, names.DEPLOYMENT],
    }
    return child(
        resource, "monitoring.coreos.com/v1", "PodMonitor", resource.name, "router", spec=spec
    )

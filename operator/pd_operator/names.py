"""Every name that the operator gives: API, objects, labels, annotations, ports, reasons.

Object names are stable and derived from the PDDeployment's name alone, so that autoscalers, people
and dashboards can rely on them.
"""

from __future__ import annotations

from typing import Literal

GROUP = "pdserve.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "PDDeployment"
PLURAL = "pddeployments"
SINGULAR = "pddeployment"
CRD_NAME = f"{PLURAL}.{GROUP}"

FIELD_MANAGER = "pdserve-operator"
"""Owns everything of the children; of replicas only those that a StatefulSet is created with."""
REPLICAS_MANAGER = "pdserve-replicas"
"""Owns spec.replicas of a StatefulSet that has changed, until somebody else scales it."""
STATUS_MANAGER = "pdserve-status"

MANAGED_BY = {"app.kubernetes.io/managed-by": "pdserve"}
MANAGED_SELECTOR = "app.kubernetes.io/managed-by=pdserve"
OPERATOR = {"app.kubernetes.io/part-of": "pdserve", "app.kubernetes.io/component": "operator"}
"""Labels of an operator's Lease and, by the chart, of its pods."""
OPERATOR_SELECTOR = ",".join(f"{name}={value}" for name, value in OPERATOR.items())
DEPLOYMENT = f"{GROUP}/deployment"
ROLE = f"{GROUP}/role"
ROUTABLE = f"{GROUP}/routable"
"""Pod label: `true` on workers that the router may use. Taken away before a worker drains."""
TEMPLATE_HASH = f"{GROUP}/template-hash"
"""Annotation of a StatefulSet and of its pods: hash of the pod template."""
APPLIED_HASH = f"{GROUP}/applied-hash"
"""Annotation of every child: hash of what was applied last."""
PAIRING_HASH = f"{GROUP}/pairing-hash"
"""Annotation of a worker pod: hash of what prefill and decode must agree on."""
DRAIN_SINCE = f"{GROUP}/drain-since"
"""Pod annotation: when its drain began (RFC 3339)."""

Role = Literal["prefill", "decode"]
ROLES: tuple[Role, Role] = ("prefill", "decode")
WORKER = "worker"
"""Name of a worker pod's main container."""
MAX_NAME = 38
"""So that the longest label made of it (StatefulSet pod, revision hash) stays within 63."""


def workload(name: str, role: str) -> str:
    """The StatefulSet of a role, its headless Service and its disruption budget."""
    return f"{name}-{role}"


def router(name: str) -> str:
    """The router's Deployment and its access objects."""
    return f"{name}-router"


def worker_account(name: str) -> str:
    """The workers' ServiceAccount, which may do nothing."""
    return f"{name}-worker"


def secret(name: str, mark: str = "") -> str:
    """The Secret with what the parts share; `mark` tells a later one from the first."""
    return f"{name}-keys-{mark}" if mark else f"{name}-keys"


def pod_host(name: str, role: str, ordinal: int | str, namespace: str) -> str:
    """Stable DNS name of a worker pod."""
    service = workload(name, role)
    return f"{service}-{ordinal}.{service}.{namespace}.svc"


def labels(name: str, component: str) -> dict[str, str]:
    """Labels of every child of a deployment."""
    return {
        "app.kubernetes.io/name": "pdserve",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/part-of": name,
        **MANAGED_BY,
        DEPLOYMENT: name,
    }


def selector(name: str, component: str) -> dict[str, str]:
    """Labels that never change and pick a component's pods."""
    return {DEPLOYMENT: name, ROLE: component}

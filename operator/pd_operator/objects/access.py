"""Who may do what: the workers nothing, the router find the workers; and what the parts share."""

from __future__ import annotations

from pd_operator import names
from pd_operator.engines import engine_of
from pd_operator.engines.pdserve import SECRET_KEY
from pd_operator.objects.meta import child
from pd_operator.resource import Manifest, Resource


def accounts(resource: Resource) -> list[Manifest]:
    """ServiceAccounts of workers and router, and what the router may read."""
    worker = child(
        resource,
        "v1",
        "ServiceAccount",
        names.worker_account(resource.name),
        "worker",
        automountServiceAccountToken=False,
    )
    return [worker, *_router_access(resource)] if resource.spec.router.enabled else [worker]


def _router_access(resource: Resource) -> list[Manifest]:
    name, group = names.router(resource.name), "rbac.authorization.k8s.io"
    reads = engine_of(resource).router_reads
    rule = {
        "apiGroups": [reads.group],
        "resources": [reads.resource],
        "verbs": ["get", "list", "watch"],
    }
    subject = {"kind": "ServiceAccount", "name": name, "namespace": resource.namespace}
    return [
        child(resource, "v1", "ServiceAccount", name, "router", automountServiceAccountToken=False),
        child(resource, f"{group}/v1", "Role", name, "router", rules=[rule]),
        child(
            resource,
            f"{group}/v1",
            "RoleBinding",
            name,
            "router",
            roleRef={"apiGroup": group, "kind": "Role", "name": name},
            subjects=[subject],
        ),
    ]


def secret(resource: Resource, name: str, value: str) -> Manifest:
    """What workers and router share. Made once and never changed: running parts hold it."""
    return child(
        resource,
        "v1",
        "Secret",
        name,
        "worker",
        type="Opaque",
        immutable=True,
        stringData={SECRET_KEY: value},
    )

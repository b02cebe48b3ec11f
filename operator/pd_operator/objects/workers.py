"""The StatefulSet of a role, and its pod template."""

from __future__ import annotations

from typing import Any

from pd_operator import names
from pd_operator.api.markers import to_manifest
from pd_operator.engines import engine_of
from pd_operator.engines.base import Engine
from pd_operator.engines.sglang import BOOTSTRAP_ANNOTATION
from pd_operator.objects.container import PRE_STOP_S, rdma_check, worker_container
from pd_operator.objects.meta import annotate, child, digest, overlay
from pd_operator.objects.placement import affinity
from pd_operator.objects.storage import storage_of
from pd_operator.ports import ports_of
from pd_operator.rdma import Binding, bind
from pd_operator.resource import Manifest, Resource

GRACE_S = 10
"""What remains for the container's own end after the drain."""


def stateful_set(
    resource: Resource, role: names.Role, *, partition: int, replicas: int | None
) -> Manifest:
    """`partition` in pods; `replicas` in pods, or None to leave them to whoever owns them."""
    mark = {names.TEMPLATE_HASH: template_hash(resource, role)}
    template = annotate(pod_template(resource, role), **mark)
    spec: Manifest = {} if replicas is None else {"replicas": replicas}
    spec |= {
        "serviceName": names.workload(resource.name, role),
        "podManagementPolicy": "Parallel",
        "revisionHistoryLimit": resource.spec.rollout.revision_history_limit,
        "minReadySeconds": resource.spec.rollout.min_ready_seconds,
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
        "selector": {"matchLabels": names.selector(resource.name, role)},
        "template": template,
    }
    name = names.workload(resource.name, role)
    manifest = child(resource, "apps/v1", "StatefulSet", name, role, spec=spec)
    return annotate(manifest, **mark)


def template_hash(resource: Resource, role: names.Role) -> str:
    """Tells pods of one template from those of another."""
    return digest(pod_template(resource, role))


def pairing_hash(resource: Resource) -> str:
    """Hash of what may decide whether two workers can pair; equal in both roles' pods.

    The true key is known to running workers only. This one changes whenever that one can.
    """
    spec = resource.spec
    decisive: list[Any] = [spec.model.source, spec.model.revision]
    decisive += [spec.engine.image, spec.engine.args]
    renewed = resource.secret != names.secret(resource.name)
    return digest([*decisive, resource.secret] if renewed else decisive)


def pod_template(resource: Resource, role: names.Role) -> Manifest:
    """Pod template of a role."""
    binding = bind(resource.spec.rdma)
    template = {"metadata": _meta(resource, role, binding), "spec": _pod(resource, role, binding)}
    return overlay(template, resource.role(role).pod_template)


def _meta(resource: Resource, role: names.Role, binding: Binding) -> Manifest:
    engine = engine_of(resource)
    labels = names.labels(resource.name, role) | names.selector(resource.name, role)
    if engine.self_routing:
        labels[names.ROUTABLE] = "true"
    annotations = {names.PAIRING_HASH: pairing_hash(resource)} | binding.annotations
    if resource.spec.engine.type == "SGLang" and role == "prefill":
        annotations[BOOTSTRAP_ANNOTATION] = str(ports_of(resource, role).bootstrap)
    return {"labels": labels, "annotations": annotations}


def _pod(resource: Resource, role: names.Role, binding: Binding) -> Manifest:
    part, spec, engine = resource.role(role), resource.spec, engine_of(resource)
    storage = storage_of(resource, role)
    check = [rdma_check(resource, binding)] if binding.checked else []
    optional: Manifest = {
        "nodeSelector": part.node_selector,
        "tolerations": part.tolerations,
        "affinity": affinity(resource, role),
        "priorityClassName": part.priority_class_name,
        "imagePullSecrets": spec.engine.image_pull_secrets,
        "resourceClaims": binding.claims,
    }
    if spec.rdma.host_network:
        optional |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return {
        "serviceAccountName": names.worker_account(resource.name),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PRE_STOP_S + part.drain_timeout_seconds + GRACE_S,
        "securityContext": _pod_security(resource, engine, binding),
        **({"initContainers": check} if check else {}),
        "containers": [worker_container(resource, role, binding, storage)],
        "volumes": [*storage.volumes, *binding.volumes],
        **{name: to_manifest(value) for name, value in optional.items() if value},
    }


def _pod_security(resource: Resource, engine: Engine, binding: Binding) -> Manifest:
    security: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    if binding.capabilities:
        security["runAsUser"] = 0
    elif engine.hardened:
        security["runAsNonRoot"] = True
    if resource.spec.model.cache.type == "PVC":
        security |= {"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"}
    return security

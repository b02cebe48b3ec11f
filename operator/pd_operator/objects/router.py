"""The router's Deployment."""

from __future__ import annotations

from pd_operator import names
from pd_operator.api.markers import to_manifest
from pd_operator.engines import engine_of
from pd_operator.engines.base import ACCESS_PORT, Engine
from pd_operator.objects.container import probes
from pd_operator.objects.meta import by_name, child, overlay
from pd_operator.resource import Manifest, Resource

PRE_STOP_S = 15
"""Node proxies send new connections elsewhere before the router stops taking them; an only router
has been replaced by then."""
GRACE_S = 10
STARTUP_S = 120


def deployment(resource: Resource) -> Manifest:
    """The router. It keeps no state, so that any number of it serve side by side."""
    selector = names.selector(resource.name, "router")
    template = {
        "metadata": {"labels": names.labels(resource.name, "router") | selector},
        "spec": _pod(resource),
    }
    spec = {
        "replicas": 0 if resource.spec.suspend else resource.spec.router.replicas,
        "revisionHistoryLimit": resource.spec.rollout.revision_history_limit,
        "selector": {"matchLabels": selector},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
        },
        "template": overlay(template, resource.spec.router.pod_template),
    }
    name = names.router(resource.name)
    return child(resource, "apps/v1", "Deployment", name, "router", spec=spec)


def _pod(resource: Resource) -> Manifest:
    spec, engine = resource.spec, engine_of(resource)
    security: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    if engine.hardened:
        security["runAsNonRoot"] = True
    pod: Manifest = {
        "serviceAccountName": names.router(resource.name),
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": PRE_STOP_S + spec.router.drain_timeout_seconds + GRACE_S,
        "securityContext": security,
        "containers": [_container(resource, engine)],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    if spec.engine.image_pull_secrets:
        pod["imagePullSecrets"] = to_manifest(spec.engine.image_pull_secrets)
    return pod


def _container(resource: Resource, engine: Engine) -> Manifest:
    router, common = resource.spec.router, resource.spec.engine
    process = engine.router(resource)
    security: Manifest = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": engine.hardened,
    }
    container = {
        "name": "router",
        "image": router.image or common.image,
        "imagePullPolicy": common.image_pull_policy,
        "command": process.command,
        "args": [*process.args, *router.args],
        "env": by_name(process.env, [to_manifest(each) for each in router.env]),
        "ports": [{"name": "http", "containerPort": ACCESS_PORT, "protocol": "TCP"}],
        "securityContext": security,
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        **probes(process.probes, ACCESS_PORT, STARTUP_S),
    }
    resources = to_manifest(router.resources)
    return container | ({"resources": resources} if resources else {})

"""The containers of a worker pod: the worker itself, and the check of its RDMA devices."""

from __future__ import annotations

import math

from pd_operator import names
from pd_operator.api.markers import to_manifest
from pd_operator.engines import engine_of
from pd_operator.engines.base import Engine, Probes
from pd_operator.objects.meta import by_name
from pd_operator.objects.storage import Storage
from pd_operator.ports import Ports, ports_of
from pd_operator.rdma import CHECK, SCRIPT, Binding, check_environment
from pd_operator.resource import Manifest, Resource

STARTUP_PERIOD_S = 2
PRE_STOP_S = 3
"""Routers learn of the pod's end before its worker does."""


def worker_container(
    resource: Resource, role: names.Role, binding: Binding, storage: Storage
) -> Manifest:
    """`worker`: the engine's process, then the user's flags and environment."""
    part, spec, engine = resource.role(role), resource.spec, engine_of(resource)
    process, ports = engine.worker(resource, role), ports_of(resource, role)
    user_env = [to_manifest(each) for each in (*spec.engine.env, *part.env)]
    return {
        "name": names.WORKER,
        "image": spec.engine.image,
        "imagePullPolicy": spec.engine.image_pull_policy,
        "command": process.command,
        "args": [*process.args, *spec.engine.args, *part.args],
        "env": by_name(storage.env, list(binding.env), process.env, user_env),
        "ports": _ports(resource, role, ports),
        "resources": _resources(resource, role, binding),
        "securityContext": _security(engine, binding),
        "volumeMounts": [*storage.mounts, *binding.mounts],
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_S}}},
        **probes(process.probes, ports.http, part.startup_timeout_seconds),
    }


def _ports(resource: Resource, role: names.Role, ports: Ports) -> list[Manifest]:
    named = {"http": ports.http} | ({"bootstrap": ports.bootstrap} if role == "prefill" else {})
    if resource.role(role).nodes_per_worker > 1:
        named["dist-init"] = ports.dist_init
    host = resource.spec.rdma.host_network
    return [
        {"name": name, "containerPort": port, "protocol": "TCP"}
        | ({"hostPort": port} if host else {})
        for name, port in named.items()
    ]


def _resources(resource: Resource, role: names.Role, binding: Binding) -> Manifest:
    part = resource.role(role)
    devices: dict[str, int | str] = {part.gpu_resource: part.gpus} if part.gpus else {}
    devices |= binding.resources
    resources: Manifest = {
        "requests": {**part.resources.requests, **devices},
        "limits": {**part.resources.limits, **devices},
        "claims": [{"name": claim["name"]} for claim in binding.claims],
    }
    return {name: value for name, value in resources.items() if value}


def _security(engine: Engine, binding: Binding) -> Manifest:
    if binding.privileged:
        return {"privileged": True}
    security: Manifest = {"allowPrivilegeEscalation": False}
    if engine.hardened:
        security["readOnlyRootFilesystem"] = True
    changes = {"drop": ["ALL"] if engine.hardened else [], "add": list(binding.capabilities)}
    capabilities = {name: value for name, value in changes.items() if value}
    return security | ({"capabilities": capabilities} if capabilities else {})


def rdma_check(resource: Resource, binding: Binding) -> Manifest:
    """Runs before the worker with the same devices; fails with a reason, and nothing falls back. It
    only reads, whatever the engine's image."""
    security: Manifest = {"readOnlyRootFilesystem": True}
    if binding.privileged:
        security["privileged"] = True
    else:
        security |= {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    resources: Manifest = {"requests": binding.resources, "limits": binding.resources}
    resources["claims"] = [{"name": claim["name"]} for claim in binding.claims]
    return {
        "name": CHECK,
        "image": resource.spec.engine.image,
        "imagePullPolicy": resource.spec.engine.image_pull_policy,
        "command": ["sh", "-c", SCRIPT],
        "env": check_environment(resource.spec.rdma),
        "resources": {name: value for name, value in resources.items() if value},
        "securityContext": security,
        **({"volumeMounts": list(binding.mounts)} if binding.mounts else {}),
    }


def probes(paths: Probes, port: int, startup_timeout_s: int) -> Manifest:
    """Start-up, liveness and readiness; nothing but the start-up waits for a model to load."""

    def get(path: str, period_s: int, failures: int) -> Manifest:
        return {
            "httpGet": {"path": path, "port": port},
            "periodSeconds": period_s,
            "timeoutSeconds": 5,
            "failureThreshold": failures,
        }

    return {
        "startupProbe": get(
            paths.startup, STARTUP_PERIOD_S, math.ceil(startup_timeout_s / STARTUP_PERIOD_S)
        ),
        "livenessProbe": get(paths.liveness, 10, 6),
        "readinessProbe": get(paths.readiness, 5, 2),
    }

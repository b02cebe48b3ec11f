"""What a PDDeployment would take: pods, devices, objects, and what to think about. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pd_operator import names
from pd_operator.plugin.table import table
from pd_operator.quantity import parse, share
from pd_operator.resource import Manifest, Resource

GI = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A role, or the router."""

    name: str
    workers: int
    pods: int
    most: int
    """Pods at most: by autoscaling and a rollout's surge."""
    asks: Mapping[str, Decimal]
    """Resources that one pod asks for."""
    template: Manifest


def parts(resource: Resource, manifests: Sequence[Manifest]) -> list[Part]:
    """Prefill, decode and router, from the objects that would be applied."""
    return [
        _part(resource, manifest)
        for manifest in manifests
        if manifest["kind"] in ("StatefulSet", "Deployment")
    ]


def _part(resource: Resource, manifest: Manifest) -> Part:
    name = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
    template, pods = manifest["spec"]["template"], int(manifest["spec"]["replicas"])
    nodes = _nodes(resource, name)
    most = _most(resource, name, pods // nodes) * nodes
    return Part(
        name=name,
        workers=pods // nodes,
        pods=pods,
        most=most,
        asks=requests(template["spec"]),
        template=template,
    )


def _nodes(resource: Resource, name: str) -> int:
    return next((resource.role(role).nodes_per_worker for role in names.ROLES if role == name), 1)


def _most(resource: Resource, name: str, workers: int) -> int:
    role = next((role for role in names.ROLES if role == name), None)
    if role is None:
        return workers
    scaling, surge = resource.role(role).autoscaling, resource.spec.rollout.max_surge
    most = max(workers, scaling.max_replicas) if scaling else workers
    return most + share(surge, most, up=True)


def requests(pod: Mapping[str, Any]) -> dict[str, Decimal]:
    """What the scheduler counts for a pod; a limit without a request counts as one."""
    total: dict[str, Decimal] = {}
    for container in pod["containers"]:
        given = container.get("resources", {})
        for name, value in (given.get("limits", {}) | given.get("requests", {})).items():
            total[name] = total.get(name, Decimal(0)) + parse(value)
    return total


def devices(found: Sequence[Part]) -> list[str]:
    """Names of countable resources beyond CPU and memory, such as GPUs and NICs."""
    known = {name for part in found for name in part.asks}
    return sorted(name for name in known if "/" in name)


def summary(found: Sequence[Part]) -> str:
    """A line for each part, and the sum of devices."""
    extra = devices(found)
    head = ["PART", "WORKERS", "PODS", "AT MOST", "CPU", "MEMORY", *extra]
    rows = [head, *(_row(part, extra) for part in found)]
    totals = [
        str(sum(part.pods * part.asks.get(name, Decimal(0)) for part in found)) for name in extra
    ]
    pods, most = sum(part.pods for part in found), sum(part.most for part in found)
    rows.append(["total", "", str(pods), str(most), "", "", *totals])
    return table(rows)


def _row(part: Part, extra: Sequence[str]) -> list[str]:
    cpu, memory = part.asks.get("cpu"), part.asks.get("memory")
    counts = [str(part.pods * part.asks.get(name, Decimal(0))) for name in extra]
    return [
        part.name,
        str(part.workers),
        str(part.pods),
        str(part.most),
        "-" if cpu is None else f"{float(cpu):g}",
        "-" if memory is None else f"{float(memory / GI):g}Gi",
        *counts,
    ]


def objects(manifests: Sequence[Manifest]) -> str:
    """What would be applied, by kind."""
    kinds: dict[str, list[str]] = {}
    for manifest in manifests:
        kinds.setdefault(manifest["kind"], []).append(manifest["metadata"]["name"])
    return table([["KIND", "NAMES"], *([kind, ", ".join(found)] for kind, found in kinds.items())])


def warnings(resource: Resource) -> Iterator[str]:
    """What is allowed, and is rarely meant."""
    spec = resource.spec
    gpus = spec.prefill.gpus or spec.decode.gpus
    if gpus and spec.rdma.mode == "None" and spec.transfer.backend != "Fake":
        yield "rdma.mode is None: KV moves over TCP, which is slow between GPUs"
    if spec.rdma.mode == "HostDevices":
        yield "rdma.mode HostDevices makes pods privileged: they see all GPUs of their node"
    if spec.rdma.mode != "None" and not spec.rdma.required:
        yield "rdma.required is false: a worker without an ACTIVE port falls back to TCP"
    yield from _tag_warnings(resource)
    for role in names.ROLES:
        yield from _role_warnings(resource, role)
    yield from _budget_warnings(resource)


def _tag_warnings(resource: Resource) -> Iterator[str]:
    image = resource.spec.engine.image
    if "@" not in image and image.rpartition("/")[2].partition(":")[2] in ("", "latest"):
        yield f"engine.image {image} names no version: a restarted pod may run another one"


def _role_warnings(resource: Resource, role: names.Role) -> Iterator[str]:
    part, rollout = resource.role(role), resource.spec.rollout
    external = part.autoscaling is not None and part.autoscaling.provider != "Builtin"
    room = share(rollout.max_surge, part.replicas, up=True) > 0 and not external
    if part.replicas == 1 and not room:
        yield f"{role}: one worker and no surge: every rollout interrupts service"
    if part.replicas == 1 and part.autoscaling is None:
        yield f"{role}: one worker: while it is down, nothing is served"
    if part.drain_timeout_seconds == 0:
        yield f"{role}: drainTimeoutSeconds is 0: scaling down ends running requests"


def _budget_warnings(resource: Resource) -> Iterator[str]:
    spec = resource.spec
    budget = spec.scaling.max_gpus
    if budget is None:
        return
    roles = [resource.role(role) for role in names.ROLES]
    used = sum(part.replicas * part.gpus * part.nodes_per_worker for part in roles)
    least = min(part.gpus * part.nodes_per_worker for part in roles)
    if share(spec.rollout.max_surge, 1, up=True) and used + least > budget:
        yield "scaling.maxGPUs leaves no room for a surge: rollouts take a worker away first"

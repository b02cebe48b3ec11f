"""What the children of a deployment say, as facts to decide on. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pd_operator import names
from pd_operator.kinds import DEPLOYMENT, POD, STATEFUL_SET
from pd_operator.rdma import CHECK
from pd_operator.resource import Manifest, Resource
from pd_operator.store import Store, controller

PULL_REASONS = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
KILLED = (137, 143)
"""Exit codes after SIGKILL and SIGTERM."""
CONFIG_REASONS = ("CreateContainerConfigError", "CreateContainerError")


def seconds(timestamp: str | None) -> float | None:
    """A Kubernetes time as seconds since the epoch."""
    if not timestamp:
        return None
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as a Kubernetes time."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a role or of the router."""

    name: str
    uid: str
    ordinal: int
    """-1 where the name ends in no number."""
    pairing_hash: str
    ready: bool
    ready_since: float | None
    created_at: float
    terminating: bool
    routable: bool
    template_hash: str
    drain_since: float | None
    ip: str
    reason: str = ""
    """Why it is not ready; empty for a ready one and for one that just starts."""
    message: str = ""
    rdma_checked: bool = False
    """Its init container found an ACTIVE port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A StatefulSet or Deployment."""

    uid: str
    replicas: int
    """Asked for."""
    settled: bool
    """Its controller has seen its latest spec."""
    partition: int
    template_hash: str
    ready: int
    available: int
    updated: int
    existing: int
    replicas_owners: tuple[str, ...]
    """Field managers that own spec.replicas by server-side apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A deployment's workloads and pods; None and empty where there are none."""

    workloads: Mapping[str, Workload | None]
    """By component: prefill, decode, router."""
    pods: Mapping[str, tuple[Pod, ...]] = field(default_factory=dict)
    """By component, by ordinal or name."""


def observe(resource: Resource, store: Store) -> Observed:
    """What the store holds of a deployment's own objects; others' of the same name are left out."""
    sets = store.of(resource.key, STATEFUL_SET)
    workloads: dict[str, Workload | None] = {
        role: _workload(sets.get(names.workload(resource.name, role)), resource)
        for role in names.ROLES
    }
    router = store.of(resource.key, DEPLOYMENT).get(names.router(resource.name))
    by_component: dict[str, list[Pod]] = {component: [] for component in (*names.ROLES, "router")}
    for manifest in store.of(resource.key, POD).values():
        component = manifest["metadata"].get("labels", {}).get(names.ROLE)
        if component in by_component and _controlled(manifest, workloads.get(component)):
            by_component[component].append(pod_facts(manifest))
    return Observed(
        workloads=workloads | {"router": _workload(router, resource)},
        pods={
            component: tuple(sorted(pods, key=lambda pod: (pod.ordinal, pod.name)))
            for component, pods in by_component.items()
        },
    )


def is_own(resource: Resource, manifest: Mapping[str, Any]) -> bool:
    """True for an object whose controller is this very deployment."""
    owner = controller(manifest)
    return owner is not None and owner["uid"] == resource.uid


def is_leftover(resource: Resource, manifest: Mapping[str, Any]) -> bool:
    """True for an object of an earlier deployment of this name: the garbage collector is about to
    remove it."""
    owner = controller(manifest)
    return (
        owner is not None
        and (owner["kind"], owner["name"]) == (names.KIND, resource.name)
        and owner["uid"] != resource.uid
    )


def _controlled(manifest: Mapping[str, Any], workload: Workload | None) -> bool:
    """A worker pod of an earlier StatefulSet of the same name waits for its end: it is none of
    ours. Whose ReplicaSet a router pod has is not known here, and nothing depends on it."""
    owner = controller(manifest)
    if owner is None or owner["kind"] != STATEFUL_SET.name:
        return owner is not None and owner["kind"] == "ReplicaSet"
    return workload is not None and owner["uid"] == workload.uid


def _workload(manifest: Manifest | None, resource: Resource) -> Workload | None:
    if manifest is None or not is_own(resource, manifest):
        return None
    meta, spec, status = manifest["metadata"], manifest["spec"], manifest.get("status", {})
    strategy = spec.get("updateStrategy", {}).get("rollingUpdate", {})
    return Workload(
        uid=meta["uid"],
        replicas=spec.get("replicas", 1),
        settled=status.get("observedGeneration", 0) >= meta.get("generation", 0),
        partition=strategy.get("partition", 0),
        template_hash=meta.get("annotations", {}).get(names.TEMPLATE_HASH, ""),
        ready=status.get("readyReplicas", 0),
        available=status.get("availableReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        existing=status.get("replicas", 0),
        replicas_owners=tuple(manifest.get("replicasOwners", ())),
    )


def pod_facts(manifest: Mapping[str, Any]) -> Pod:
    """The facts of one pod."""
    meta, status = manifest["metadata"], manifest.get("status", {})
    labels, annotations = meta.get("labels", {}), meta.get("annotations", {})
    ready = _condition(status, "Ready")
    is_ready = ready.get("status") == "True"
    tail = meta["name"].rpartition("-")[2]
    reason, message = ("", "") if is_ready else _why(status)
    return Pod(
        name=meta["name"],
        uid=meta["uid"],
        ordinal=int(tail) if tail.isdigit() else -1,
        pairing_hash=annotations.get(names.PAIRING_HASH, ""),
        ready=is_ready,
        ready_since=seconds(ready.get("lastTransitionTime")) if is_ready else None,
        created_at=seconds(meta.get("creationTimestamp")) or 0.0,
        terminating="deletionTimestamp" in meta,
        template_hash=annotations.get(names.TEMPLATE_HASH, ""),
        routable=labels.get(names.ROUTABLE) == "true",
        drain_since=seconds(annotations.get(names.DRAIN_SINCE)),
        ip=status.get("podIP", ""),
        reason=reason,
        message=message,
        rdma_checked=_rdma_checked(status),
    )


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((each for each in status.get("conditions", []) if each["type"] == kind), {})


def _rdma_checked(status: Mapping[str, Any]) -> bool:
    return any(
        each["name"] == CHECK and each.get("state", {}).get("terminated", {}).get("exitCode") == 0
        for each in status.get("initContainerStatuses", [])
    )


def _why(status: Mapping[str, Any]) -> tuple[str, str]:
    """Reason and message of a pod that is not ready."""
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return "InsufficientCapacity", scheduled.get("message", "")
    if status.get("phase") == "Failed":
        return "PodFailed", status.get("message", "") or status.get("reason", "")
    containers = [
        *status.get("initContainerStatuses", []),
        *status.get("containerStatuses", []),
    ]
    return next((found for each in containers if (found := _container_why(each))), ("", ""))


def _container_why(container: Mapping[str, Any]) -> tuple[str, str] | None:
    waiting = container.get("state", {}).get("waiting", {})
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    ended = _ended(container)
    if container["name"] == CHECK and ended.get("exitCode", 0):
        return "RDMAUnavailable", ended.get("message", "").strip() or message
    if reason in PULL_REASONS:
        return "ImagePullFailed", message
    if reason in CONFIG_REASONS:
        return "ContainerConfigError", message
    crashed = container.get("restartCount", 0) > 0 or ended.get("exitCode", 0)
    if reason == "CrashLoopBackOff" or (crashed and not container.get("ready")):
        return _crash(container, ended), _last_words(ended) or message
    return None


def _crash(container: Mapping[str, Any], ended: Mapping[str, Any]) -> str:
    """A container killed before its start-up probe ever passed took too long to load."""
    killed = ended.get("exitCode") in KILLED and ended.get("reason") != "OOMKilled"
    return "StartupTimeout" if killed and not container.get("started") else "CrashLooping"


def _ended(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """How its last run ended; empty for the first."""
    for state in ("state", "lastState"):
        ended: Mapping[str, Any] = container.get(state, {}).get("terminated", {})
        if ended:
            return ended
    return {}


def _last_words(ended: Mapping[str, Any]) -> str:
    if not ended:
        return ""
    words = f"exit code {ended.get('exitCode')} ({ended.get('reason', 'no reason')})"
    lines = ended.get("message", "").strip().splitlines()
    return f"{words}: {lines[-1]}" if lines else words


def dominant(pods: Iterable[Pod]) -> tuple[str, str]:
    """The reason that most pods that are not ready give, and one of its messages."""
    reasons = [(pod.reason, pod.message) for pod in pods if pod.reason and not pod.terminating]
    if not reasons:
        return "", ""
    words = [reason for reason, _ in reasons]
    most = max(words, key=lambda word: (words.count(word), word))
    return most, next(message for reason, message in reasons if reason == most)

"""Objects as the API server would tell them, for tests of what is decided from them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pd_operator import names
from pd_operator.desired import Choices, desired_state
from pd_operator.kinds import PDDEPLOYMENT, POD, kind_of
from pd_operator.objects.workers import pairing_hash, template_hash
from pd_operator.resource import Manifest, Resource
from pd_operator.store import Store

NOW = 1_000_000.0


def time_at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def deployment(**spec: Any) -> Manifest:
    """A PDDeployment with defaults for what is not given."""
    base: Manifest = {
        "model": {"source": "hostpath:///models/tiny"},
        "engine": {"image": "worker:1"},
        "prefill": {"gpus": 0},
        "decode": {"gpus": 0, "replicas": 2},
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": "m",
            "namespace": "llm",
            "uid": "uid-m",
            "generation": 1,
            "resourceVersion": "1",
        },
        "spec": base | spec,
    }


def resource(status: Manifest | None = None, **spec: Any) -> Resource:
    return Resource.parse(deployment(**spec) | {"status": status or {}})


def live(manifest: Manifest, version: int = 1, **status: Any) -> Manifest:
    """A child as stored by the API server."""
    meta = {
        **manifest["metadata"],
        "uid": f"uid-{manifest['kind']}-{manifest['metadata']['name']}",
        "resourceVersion": str(version),
        "generation": 1,
    }
    return manifest | {"metadata": meta, "status": {"observedGeneration": 1, **status}}


def pod(made: Resource, role: str, ordinal: int, *, ready: bool = True, **changes: Any) -> Manifest:
    """A pod of a role's StatefulSet, of its wanted template; `status` and `meta` are merged in."""
    set_name = names.workload(made.name, role)
    truth = "True" if ready else "False"
    owner = {"kind": "StatefulSet", "name": set_name, "uid": f"uid-StatefulSet-{set_name}",
             "controller": True}  # fmt: skip
    meta = {
        "name": f"{set_name}-{ordinal}",
        "namespace": made.namespace,
        "uid": f"uid-{set_name}-{ordinal}",
        "resourceVersion": "1",
        "creationTimestamp": time_at(NOW - 100),
        "labels": names.labels(made.name, role)
        | names.selector(made.name, role)
        | {names.ROUTABLE: "true"},
        "annotations": {
            names.TEMPLATE_HASH: template_hash(made, role),  # type: ignore[arg-type]
            names.PAIRING_HASH: pairing_hash(made),
        },
        "ownerReferences": [owner],
    }
    condition = {"type": "Ready", "status": truth, "lastTransitionTime": time_at(NOW - 50)}
    status = {"podIP": "10.0.0.1", "conditions": [condition]}
    return {
        "metadata": meta | changes.get("meta", {}),
        "spec": {},
        "status": status | changes.get("status", {}),
    }


def waiting(reason: str, *, name: str = "worker", message: str = "", **more: Any) -> Manifest:
    """Status of a pod whose container waits for `reason`."""
    state = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": name, "state": state, "restartCount": 0} | more]}


def populated(made: Resource, *pods: Manifest, router_ready: bool = True) -> Store:
    """A store in which everything is as wanted, with these pods."""
    store = Store()
    body = deployment() | {"status": dict(made.status)}
    store.put(PDDEPLOYMENT, body)
    counts = {role: sum(names.workload("m", role) in p["metadata"]["name"] for p in pods)
              for role in names.ROLES}  # fmt: skip
    for manifest in desired_state(made, Choices()):
        component = manifest["metadata"]["labels"]["app.kubernetes.io/component"]
        ready = counts.get(component, int(router_ready))
        told = {"replicas": ready, "readyReplicas": ready, "availableReplicas": ready}
        store.put(kind_of(manifest), live(manifest, **told))
    for each in pods:
        store.put(POD, each)
    return store

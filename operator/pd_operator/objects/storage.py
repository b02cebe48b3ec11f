"""Volumes of a worker pod: the model, its cache, shared memory, scratch space."""

from __future__ import annotations

from dataclasses import dataclass, field

from pd_operator import names
from pd_operator.api.markers import to_manifest
from pd_operator.api.model import Cache
from pd_operator.engines.base import CACHE, from_secret, model_path, variable
from pd_operator.resource import Manifest, Resource


@dataclass(slots=True, kw_only=True)
class Storage:
    """What a pod mounts, and the environment that points to it."""

    volumes: list[Manifest] = field(default_factory=list)
    mounts: list[Manifest] = field(default_factory=list)
    env: list[Manifest] = field(default_factory=list)

    def add(self, name: str, source: Manifest, path: str, **mount: object) -> None:
        self.volumes.append({"name": name, **source})
        self.mounts.append({"name": name, "mountPath": path, **mount})


def storage_of(resource: Resource, role: names.Role) -> Storage:
    """Everything that a worker of the role mounts, but for devices."""
    model, storage = resource.spec.model, Storage()
    size = resource.role(role).shm_size
    storage.add("shm", {"emptyDir": {"medium": "Memory", "sizeLimit": size}}, "/dev/shm")
    storage.add("tmp", {"emptyDir": {}}, "/tmp")
    storage.add("cache", _cache(model.cache), CACHE)
    storage.env.append(variable("HF_HOME", f"{CACHE}/huggingface"))
    if not model.source.startswith("hf://"):
        _mount_model(resource, storage)
    if model.token_secret_ref:
        ref = model.token_secret_ref
        storage.env.append(from_secret("HF_TOKEN", ref.name, ref.key))
    return storage


def _cache(cache: Cache) -> Manifest:
    match cache.type:
        case "HostPath":
            return {"hostPath": {"path": cache.path, "type": "DirectoryOrCreate"}}
        case "PVC":
            return {"persistentVolumeClaim": {"claimName": cache.claim_name}}
    return {"emptyDir": to_manifest({"sizeLimit": cache.size_limit})}


def _mount_model(resource: Resource, storage: Storage) -> None:
    spec = resource.spec
    kind, _, rest = spec.model.source.partition("://")
    path = model_path(resource)
    if kind == "hostpath":
        storage.add("model", {"hostPath": {"path": f"/{rest.strip('/')}"}}, path, readOnly=True)
    elif kind == "oci":
        image = {"reference": rest, "pullPolicy": spec.engine.image_pull_policy}
        storage.add("model", {"image": image}, path, readOnly=True)
    else:
        claim, _, inside = rest.partition("/")
        source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        below = {"subPath": inside.strip("/")} if inside.strip("/") else {}
        storage.add("model", source, path, readOnly=True, **below)

"""What the operator knows of the cluster: its deployments and their children, trimmed.

Reflectors and handlers write, reconcile reads; all in one event loop. Objects are never changed in
place: who got one may keep it. What is told of one object arrives in no certain order, as events,
lists and the answers to writes come by several connections; versions put it in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pd_operator import names
from pd_operator.kinds import PDDEPLOYMENT, POD, Kind
from pd_operator.resource import Key, Manifest

LATE = 20_000
"""Of so many objects that went last it is known that they did."""


def owner_key(manifest: Mapping[str, Any]) -> Key | None:
    """The deployment that an object belongs to, by its owner or its labels; or that it is."""
    meta = manifest["metadata"]
    if manifest.get("kind") == names.KIND:
        return Key(meta["namespace"], meta["name"])
    owner = controller(manifest)
    name = meta.get("labels", {}).get(names.DEPLOYMENT)
    if owner and owner["kind"] == names.KIND:
        name = owner["name"]
    return Key(meta["namespace"], name) if name else None


def controller(manifest: Mapping[str, Any]) -> Manifest | None:
    """The ownerReference of the object that controls this one."""
    owners: list[Manifest] = manifest["metadata"].get("ownerReferences", [])
    return next((owner for owner in owners if owner.get("controller")), None)


def trimmed(kind: Kind, manifest: Mapping[str, Any]) -> Manifest:
    """The object without what nobody reads. Of managedFields only who applied replicas is kept."""
    meta = dict(manifest["metadata"])
    managers = meta.pop("managedFields", [])
    slim: Manifest = {**manifest, "metadata": meta}
    slim |= {"apiVersion": kind.api_version, "kind": kind.name}
    if kind == POD:
        slim["spec"] = {"nodeName": manifest.get("spec", {}).get("nodeName")}
    owners = [each["manager"] for each in managers if _owns_replicas(each)]
    return slim | ({"replicasOwners": owners} if owners else {})


def _owns_replicas(entry: Mapping[str, Any]) -> bool:
    return entry["operation"] == "Apply" and "f:replicas" in entry.get("fieldsV1", {}).get(
        "f:spec", {}
    )


class Store:
    """Objects by deployment, kind and name."""

    def __init__(self) -> None:
        self._objects: dict[Key, dict[Kind, dict[str, Manifest]]] = defaultdict(dict)
        self._gone: dict[str, int] = {}
        """By uid: the version at which an object went, so that nothing older brings it back."""

    def __repr__(self) -> str:
        return f"<Store {len(self._objects)} deployments>"

    def put(self, kind: Kind, manifest: Mapping[str, Any]) -> Key | None:
        """Remember an object unless something newer is known of it; its deployment."""
        key = owner_key(manifest)
        if key is None or self._late(manifest):
            return key
        named = self._objects[key].setdefault(kind, {})
        name = manifest["metadata"]["name"]
        known = named.get(name)
        if known is None or not _older(manifest, known):
            named[name] = trimmed(kind, manifest)
        return key

    def drop(self, kind: Kind, manifest: Mapping[str, Any]) -> Key | None:
        """Forget an object, unless another one has taken its name; its deployment. `manifest` has
        the version at which it went."""
        self._bury(manifest["metadata"]["uid"], _version(manifest))
        key = owner_key(manifest)
        if key is None or key not in self._objects:
            return key
        named = self._objects[key].get(kind, {})
        known = named.get(manifest["metadata"]["name"])
        if known and known["metadata"]["uid"] == manifest["metadata"]["uid"]:
            del named[manifest["metadata"]["name"]]
        if not any(self._objects[key].values()):
            del self._objects[key]
        return key

    def replace(
        self, kind: Kind, manifests: Iterable[Mapping[str, Any]], scope: str, version: str
    ) -> set[Key]:
        """Make a list of all objects of a kind (in namespace `scope`, or everywhere) what is known;
        the deployments whose objects are new, changed or gone. What is newer than the list, which
        is of `version`, stays."""
        listed = {(m["metadata"]["namespace"], m["metadata"]["name"]): m for m in manifests}
        gone = [
            known
            for key, kinds in self._objects.items()
            if scope in ("", key.namespace)
            for name, known in kinds.get(kind, {}).items()
            if (key.namespace, name) not in listed and _version(known) <= int(version)
        ]
        touched = {self.drop(kind, _at(manifest, version)) for manifest in gone}
        touched |= {self.put(kind, manifest) for manifest in listed.values()}
        return {key for key in touched if key}

    def deployment(self, key: Key) -> Manifest | None:
        """The PDDeployment."""
        return self.of(key, PDDEPLOYMENT).get(key.name)

    def of(self, key: Key, kind: Kind) -> Mapping[str, Manifest]:
        """Its objects of a kind, by name."""
        return self._objects[key].get(kind, {}) if key in self._objects else {}

    def children(self, key: Key) -> Iterator[tuple[Kind, Manifest]]:
        """All of its objects but itself and its pods."""
        for kind, named in list(self._objects.get(key, {}).items()):
            if kind not in (PDDEPLOYMENT, POD):
                yield from ((kind, manifest) for manifest in list(named.values()))

    def keys(self) -> list[Key]:
        """Every deployment of which anything is known."""
        return list(self._objects)

    def _late(self, manifest: Mapping[str, Any]) -> bool:
        return _version(manifest) <= self._gone.get(manifest["metadata"]["uid"], -1)

    def _bury(self, uid: str, version: int) -> None:
        self._gone[uid] = version
        if len(self._gone) > LATE:
            del self._gone[next(iter(self._gone))]


def _version(manifest: Mapping[str, Any]) -> int:
    return int(manifest["metadata"]["resourceVersion"])


def _at(manifest: Manifest, version: str) -> Manifest:
    return manifest | {"metadata": manifest["metadata"] | {"resourceVersion": version}}


def _older(manifest: Mapping[str, Any], known: Mapping[str, Any]) -> bool:
    """True where both are one object and `manifest` is its earlier version."""
    same = manifest["metadata"]["uid"] == known["metadata"]["uid"]
    return same and _version(manifest) < _version(known)

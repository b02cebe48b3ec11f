"""What the operator knows of the cluster: its deployments and their children, trimmed.

Reflectors and handlers write, reconcile reads; all in one event loop. Objects are kept as bytes,
which need a quarter of the memory and give the garbage collector nothing to walk through; who asks
for one gets a copy of his own. What is told of one object arrives in no certain order, as events,
lists and the answers to writes come by several connections; versions put it in order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

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


class Entry(NamedTuple):
    """One object as it is kept."""

    key: Key | None
    """The deployment that it belongs to; None for one that is none of ours."""
    namespace: str
    name: str
    uid: str
    version: int
    body: bytes
    """The trimmed manifest."""


def packed(kind: Kind, manifest: Mapping[str, Any]) -> Entry:
    """The entry of an object."""
    meta = manifest["metadata"]
    return Entry(
        key=owner_key(manifest),
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        version=int(meta["resourceVersion"]),
        body=msgspec.json.encode(trimmed(kind, manifest)),
    )


class Unpacked(Mapping[str, Manifest]):
    """Manifests by name, each made when it is asked for."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries

    def __getitem__(self, name: str) -> Manifest:
        manifest: Manifest = msgspec.json.decode(self._entries[name].body)
        return manifest

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


class Store:
    """Objects by deployment, kind and name."""

    def __init__(self) -> None:
        self._objects: dict[Key, dict[Kind, dict[str, Entry]]] = defaultdict(dict)
        self._gone: dict[str, int] = {}
        """Version at which each uid went."""

    def __repr__(self) -> str:
        return f"<Store {len(self._objects)} deployments>"

    def put(self, kind: Kind, manifest: Mapping[str, Any]) -> Key | None:
        """Remember an object unless something newer is known of it; its deployment."""
        return self._put(kind, packed(kind, manifest))

    def _put(self, kind: Kind, entry: Entry) -> Key | None:
        if entry.key is None or entry.version <= self._gone.get(entry.uid, -1):
            return entry.key
        named = self._objects[entry.key].setdefault(kind, {})
        known = named.get(entry.name)
        if known is None or known.uid != entry.uid or known.version <= entry.version:
            named[entry.name] = entry
        return entry.key

    def drop(self, kind: Kind, manifest: Mapping[str, Any]) -> Key | None:
        """Forget an object, unless another one has taken its name; its deployment. `manifest` has
        the version at which it went."""
        entry = packed(kind, manifest)
        self._drop(kind, entry, entry.version)
        return entry.key

    def _drop(self, kind: Kind, entry: Entry, version: int) -> None:
        self._bury(entry.uid, version)
        if entry.key is None or entry.key not in self._objects:
            return
        named = self._objects[entry.key].get(kind, {})
        known = named.get(entry.name)
        if known and known.uid == entry.uid:
            del named[entry.name]
        if not any(self._objects[entry.key].values()):
            del self._objects[entry.key]

    def replace(self, kind: Kind, entries: Iterable[Entry], scope: str, version: str) -> set[Key]:
        """Make a list of all objects of a kind (in namespace `scope`, or everywhere) what is known;
        the deployments whose objects are new, changed or gone. What is newer than the list, which
        is of `version`, stays."""
        listed = {(entry.namespace, entry.name): entry for entry in entries}
        gone = [
            known
            for key, kinds in self._objects.items()
            if scope in ("", key.namespace)
            for name, known in kinds.get(kind, {}).items()
            if (key.namespace, name) not in listed and known.version <= int(version)
        ]
        for entry in gone:
            self._drop(kind, entry, int(version))
        touched = {self._put(kind, entry) for entry in listed.values()}
        touched |= {entry.key for entry in gone}
        return {key for key in touched if key}

    def deployment(self, key: Key) -> Manifest | None:
        """The PDDeployment."""
        return self.of(key, PDDEPLOYMENT).get(key.name)

    def has(self, key: Key) -> bool:
        """True where the PDDeployment exists."""
        return key.name in self.of(key, PDDEPLOYMENT)

    def of(self, key: Key, kind: Kind) -> Mapping[str, Manifest]:
        """Its objects of a kind, by name."""
        return Unpacked(self._objects[key].get(kind, {}) if key in self._objects else {})

    def children(self, key: Key) -> Iterator[tuple[Kind, Manifest]]:
        """All of its objects but itself and its pods."""
        for kind in list(self._objects.get(key, {})):
            if kind not in (PDDEPLOYMENT, POD):
                yield from ((kind, manifest) for manifest in self.of(key, kind).values())

    def keys(self) -> list[Key]:
        """Every deployment of which anything is known."""
        return list(self._objects)

    def _bury(self, uid: str, version: int) -> None:
        self._gone[uid] = version
        if len(self._gone) > LATE:
            del self._gone[next(iter(self._gone))]

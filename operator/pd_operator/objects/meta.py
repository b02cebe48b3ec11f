"""What every child has in common, and how manifests are hashed and overlaid."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pd_operator import names
from pd_operator.api.markers import to_manifest
from pd_operator.api.role import PodTemplate
from pd_operator.resource import Manifest, Resource

MERGE_KEYS = ("name", "mountPath", "containerPort")
"""Fields by which items of lists are matched, as Kubernetes' strategic merge does for pods."""


def child(
    resource: Resource, api_version: str, kind: str, name: str, component: str, **parts: Any
) -> Manifest:
    """A child object with its labels and its owner."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": resource.namespace,
            "labels": names.labels(resource.name, component),
            "ownerReferences": [resource.owner],
        },
        **parts,
    }


def digest(value: Any) -> str:
    """A short hash of JSON values; equal for equal values."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=to_manifest)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def annotate(manifest: Manifest, **annotations: str) -> Manifest:
    """The manifest with more annotations; keys are given as names.py's values."""
    meta = manifest["metadata"]
    merged = meta.get("annotations", {}) | annotations
    return manifest | {"metadata": meta | {"annotations": merged}}


def overlay(template: Manifest, overlay: PodTemplate | None) -> Manifest:
    """The pod template with the user's laid over it. Labels that we select by stay ours."""
    if overlay is None:
        return template
    parts = {"metadata": overlay.metadata, "spec": overlay.spec}
    merged: Manifest = merge(template, {k: part for k, part in parts.items() if part is not None})
    ours = template["metadata"]["labels"]
    meta = merged["metadata"]
    return merged | {"metadata": meta | {"labels": meta["labels"] | ours}}


def merge(base: Any, patch: Any) -> Any:
    """A strategic merge: objects by field (null removes one), lists of named items by name."""
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = {name: base[name] for name in base if patch.get(name, base) is not None}
        for name, value in patch.items():
            if value is not None:
                merged[name] = merge(base.get(name), value)
        return merged
    key = _merge_key(base, patch)
    return _merge_items(base, patch, key) if key else patch


def _merge_key(base: Any, patch: Any) -> str | None:
    if not (isinstance(base, list) and isinstance(patch, list)):
        return None
    items = [*base, *patch]
    return next(
        (key for key in MERGE_KEYS if all(isinstance(i, dict) and key in i for i in items)), None
    )


def _merge_items(base: list[Manifest], patch: list[Manifest], key: str) -> list[Manifest]:
    changes = {item[key]: item for item in patch}
    merged = [merge(item, changes.pop(item[key], {})) for item in base]
    return merged + list(changes.values())


def by_name(*lists: list[Manifest]) -> list[Manifest]:
    """Named items, each once; a later one replaces an earlier one of its name."""
    return list({item["name"]: item for items in lists for item in items}.values())

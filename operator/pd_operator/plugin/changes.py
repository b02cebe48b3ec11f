"""What applying a changed PDDeployment would do: its objects' lines, and its workers. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence

from pd_operator import names
from pd_operator.desired import Choices, desired_state
from pd_operator.growth import is_external
from pd_operator.objects.workers import pairing_hash, template_hash
from pd_operator.rendering import yaml_of
from pd_operator.resource import Manifest, Resource


def lines(old: Resource | None, new: Resource, choices: Choices) -> Iterator[str]:
    """A unified diff of all children, object by object."""
    before = _by_name(desired_state(old, choices) if old else [])
    after = _by_name(desired_state(new, choices))
    for name in sorted(before.keys() | after.keys()):
        yield from difflib.unified_diff(
            _text(before.get(name)), _text(after.get(name)), f"now/{name}", f"then/{name}",
            lineterm="", n=2,
        )  # fmt: skip


def _text(manifest: Manifest | None) -> list[str]:
    return yaml_of([manifest]).splitlines() if manifest else []


def _by_name(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in manifests}


def consequences(old: Resource | None, new: Resource) -> Iterator[str]:
    """What running workers will feel."""
    if old is None:
        yield "it is new: everything is made"
        return
    changed = [role for role in names.ROLES if template_hash(old, role) != template_hash(new, role)]
    if changed and pairing_hash(old) != pairing_hash(new):
        yield "old and new workers will not pair: both roles are rolled out in step"
    elif changed:
        yield f"the workers of {' and '.join(changed)} are replaced, one after the other"
    else:
        yield "no worker is replaced"
    for role in names.ROLES:
        yield from _size(old, new, role)
    if old.spec.suspend != new.spec.suspend:
        yield "all workers go" if new.spec.suspend else "the workers come back"


def _size(old: Resource, new: Resource, role: names.Role) -> Iterator[str]:
    before, after = old.role(role).replicas, new.role(role).replicas
    if before == after:
        return
    if new.role(role).autoscaling is None:
        yield f"{role}: {before} → {after} workers"
    else:
        scaler = new.role(role).autoscaling
        by = scaler.provider if scaler and is_external(new, role) else "the operator"
        yield f"{role}: replicas changes nothing, as {by} scales the role"

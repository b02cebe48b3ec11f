"""Earlier specs of a deployment, kept to go back to. Pure.

One ControllerRevision for each pair of pod templates that was wanted, named after it, with the
whole spec. Going back takes from it what the workers are made of, and leaves the rest as it is now:
sizes, scalers, limits, router.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pd_operator import names
from pd_operator.errors import InvalidSpec
from pd_operator.kinds import CONTROLLER_REVISION
from pd_operator.resource import Manifest, Resource

COMPONENT = "revision"
ROLE_FIELDS_KEPT = ("replicas", "autoscaling", "disruptionBudget")
"""Of a role: what makes no other worker."""
FIELDS_KEPT = ("scaling", "rollout", "router", "monitoring", "networkPolicy", "suspend")


def selector(name: str) -> str:
    """Label selector of a deployment's revisions."""
    return f"{names.DEPLOYMENT}={name},app.kubernetes.io/component={COMPONENT}"


def revision(resource: Resource, spec: Mapping[str, Any], mark: str, place: int) -> Manifest:
    """The object for `spec`, whose pod templates are named by `mark`."""
    labels = names.labels(resource.name, COMPONENT)
    labels.pop("app.kubernetes.io/managed-by")  # by it the operator finds what it watches
    return {
        "apiVersion": CONTROLLER_REVISION.api_version,
        "kind": CONTROLLER_REVISION.name,
        "metadata": {
            "name": f"{resource.name}-{mark}",
            "namespace": resource.namespace,
            "labels": labels,
            "ownerReferences": [resource.owner],
        },
        "revision": place,
        "data": {"spec": dict(spec)},
    }


def number(revision: Manifest) -> int:
    """Its place in the order of revisions."""
    return int(revision["revision"])


def in_order(revisions: Iterable[Manifest]) -> list[Manifest]:
    """Oldest first."""
    return sorted(revisions, key=number)


def next_number(revisions: Iterable[Manifest]) -> int:
    """Of the revision that is wanted now."""
    return max(map(number, revisions), default=0) + 1


def surplus(revisions: Iterable[Manifest], limit: int) -> list[Manifest]:
    """The oldest ones, beyond the present one and `limit` to go back to."""
    ordered = in_order(revisions)
    return ordered[: max(len(ordered) - 1 - limit, 0)]


def earlier(revisions: Iterable[Manifest], place: int) -> Manifest:
    """The revision to go back to: the one of that number, or for 0 the one before the latest.

    Raises InvalidSpec where there is none.
    """
    ordered = in_order(revisions)
    if place == 0 and len(ordered) > 1:
        return ordered[-2]
    found = next((each for each in ordered if number(each) == place), None)
    if found is None:
        known = ", ".join(str(each["revision"]) for each in ordered) or "none"
        raise InvalidSpec(f"there is no such revision to go back to; known: {known}")
    return found


def restored(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """The spec `now` with the workers of `then`."""
    spec = {name: value for name, value in then.items() if name not in FIELDS_KEPT}
    spec |= {name: now[name] for name in FIELDS_KEPT if name in now}
    for role in names.ROLES:
        part = {k: v for k, v in then.get(role, {}).items() if k not in ROLE_FIELDS_KEPT}
        own = now.get(role, {})
        spec[role] = part | {k: own[k] for k in ROLE_FIELDS_KEPT if k in own}
    return spec

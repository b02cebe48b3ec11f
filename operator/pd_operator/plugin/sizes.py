"""What `scale` may write. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pd_operator import names
from pd_operator.errors import InvalidSpec
from pd_operator.resource import Resource


def sizes(resource: Resource, wanted: Mapping[names.Role, int | None]) -> dict[str, Any]:
    """The patch of the spec. Raises InvalidSpec where a number would not do what is meant."""
    given = {role: count for role, count in wanted.items() if count is not None}
    if not given:
        raise InvalidSpec("nothing to do: give --prefill or --decode")
    for role, count in given.items():
        _check(resource, role, count)
    then = {role: given.get(role, resource.role(role).replicas) for role in names.ROLES}
    if (then["prefill"] == 0) != (then["decode"] == 0):
        raise InvalidSpec("prefill and decode are of no use without each other: set both to 0")
    return {role: {"replicas": count} for role, count in given.items()}


def _check(resource: Resource, role: names.Role, count: int) -> None:
    if count < 0:
        raise InvalidSpec(f"--{role} is negative")
    scaling = resource.role(role).autoscaling
    if scaling is None:
        return
    if scaling.provider == "Builtin":
        raise InvalidSpec(
            f"{role} is scaled by the operator between {scaling.min_replicas} and"
            f" {scaling.max_replicas}: change {role}.autoscaling instead"
        )
    workload = names.workload(resource.name, role)
    raise InvalidSpec(
        f"{role} is scaled by {scaling.provider}, which would undo it; `kubectl scale statefulset"
        f" {workload}` sets the number until it does"
    )

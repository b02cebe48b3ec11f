"""Is what is there what the spec asks for? By desired_state itself."""

from __future__ import annotations

from pd_operator import names
from pd_operator.desired import Choices, RoleChoice, desired_state
from pd_operator.drift import drifted
from pd_operator.kinds import PDDEPLOYMENT
from pd_operator.objects.meta import annotate
from pd_operator.resource import Manifest, Resource
from tests.operator.api_level.space import Space


async def is_as_wanted(space: Space, name: str = "m") -> bool:
    """Every child that the spec asks for is there and says so, and no other."""
    resource = Resource.parse(await space.get(PDDEPLOYMENT, name))
    choices = Choices(roles={role: RoleChoice(partition=0) for role in names.ROLES})
    live = await space.children(name)
    wanted = {(m["kind"], m["metadata"]["name"]): m for m in desired_state(resource, choices)}
    return set(live) == set(wanted) and not any(
        drifted(_without_partition(manifest, live[key]), live[key])
        for key, manifest in wanted.items()
    )


def _without_partition(manifest: Manifest, live: Manifest) -> Manifest:
    """A rollout may be under way: pods do not become ready here."""
    if manifest["kind"] != "StatefulSet":
        return manifest
    spec = {k: v for k, v in manifest["spec"].items() if k != "updateStrategy"}
    mark = live["metadata"]["annotations"][names.APPLIED_HASH]
    return annotate(manifest, **{names.APPLIED_HASH: mark}) | {"spec": spec}

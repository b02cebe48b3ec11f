"""Whose is what: fields of others, objects of others, and what they may do to ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pd_operator import names
from pd_operator.desired import Choices, desired_state
from pd_operator.kinds import PDDEPLOYMENT, SECRET, STATEFUL_SET, Kind, kind_of
from pd_operator.objects.access import secret
from pd_operator.resource import Manifest, Resource
from pd_operator.service import Service
from tests.cluster.client import Client, CommandError
from tests.operator.api_level.operators import quiet, writes
from tests.operator.api_level.space import SERVICES, Space, until
from tests.operator.api_level.test_children import EXPECTED

pytestmark = pytest.mark.cluster


async def test_children_are_owned_and_applied_by_one_manager(
    space: Space, operator: Service
) -> None:
    made = await space.create()
    await space.observed()
    for child in (await space.children()).values():
        [owner] = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (made["metadata"]["uid"], True)
        managers = {
            (each["manager"], each["operation"])
            for each in child["metadata"]["managedFields"]
            if each.get("subresource") != "status"
        }
        assert (names.FIELD_MANAGER, "Apply") in managers
        assert managers <= {(names.FIELD_MANAGER, "Apply"), (names.REPLICAS_MANAGER, "Apply")}


async def test_each_child_is_written_once(space: Space, operator: Service) -> None:
    await space.create()
    await space.observed()
    await quiet(space, operator)
    children = [each for each in writes(operator) if "pddeployments" not in each]
    assert len(children) == len(set(children)) > len(EXPECTED)


async def test_of_the_deployment_only_the_status_is_ours(space: Space, operator: Service) -> None:
    made = await space.create()
    await space.observed()
    meta = (await space.get(PDDEPLOYMENT, "m"))["metadata"]
    assert "finalizers" not in meta
    assert "annotations" not in meta
    assert meta["generation"] == made["metadata"]["generation"]
    fields = {(each["manager"], each.get("subresource", "")) for each in meta["managedFields"]}
    assert fields == {(made["metadata"]["managedFields"][0]["manager"], ""),
                      (names.STATUS_MANAGER, "status")}  # fmt: skip


async def test_who_applies_what_is_ours_is_told_of_the_conflict(
    space: Space, api: Client, operator: Service
) -> None:
    await space.create()
    await space.observed()
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "m"},
        "spec": {"selector": {names.ROLE: "other"}},
    }
    with pytest.raises(CommandError, match=f'conflict with "{names.FIELD_MANAGER}"'):
        await asyncio.to_thread(api.apply, service, namespace=space.namespace)


async def test_others_may_add_what_is_theirs(space: Space, operator: Service) -> None:
    await space.create()
    await space.observed()
    change = {"metadata": {"annotations": {"team": "serving"}, "labels": {"cost": "x"}}}
    await space.cluster.patch(SERVICES, space.namespace, "m", change)
    await space.edit(router={"port": 9000})

    async def applied() -> bool:
        return bool((await space.get(SERVICES, "m"))["spec"]["ports"][0]["port"] == 9000)

    await until("the new port", applied)
    meta = (await space.get(SERVICES, "m"))["metadata"]
    assert (meta["annotations"]["team"], meta["labels"]["cost"]) == ("serving", "x")


async def test_a_field_taken_back_goes_from_the_child(space: Space, operator: Service) -> None:
    await space.create(decode={"gpus": 0, "replicas": 2, "nodeSelector": {"a": "b"}})
    await space.observed()
    await space.edit(decode={"nodeSelector": None})

    async def gone() -> bool:
        found = await space.get(STATEFUL_SET, "m-decode")
        return "nodeSelector" not in found["spec"]["template"]["spec"]

    await until("no nodeSelector", gone)


async def test_a_foreign_object_is_refused_until_it_is_gone(
    space: Space, api: Client, operator: Service
) -> None:
    api.kubectl("create", "service", "clusterip", "m-decode", "--tcp=1", "-n", space.namespace)
    foreign = await space.get(SERVICES, "m-decode")
    await space.create()
    await space.condition("Stalled", "True NameConflict")
    assert (await space.conditions())["Ready"].startswith("False")
    assert await space.get(SERVICES, "m-decode") == foreign
    uid = foreign["metadata"]["uid"]
    await space.cluster.delete(SERVICES, space.namespace, "m-decode", uid)

    async def serves() -> bool:
        return "Stalled" not in await space.conditions()

    await until("not stalled any more", serves, timeout_s=90)
    assert set(await space.children()) == EXPECTED


ALL_KINDS: dict[str, Any] = {
    "networkPolicy": {"enabled": True},
    "decode": {"gpus": 0, "autoscaling": {"provider": "HPA", "maxReplicas": 2}},
}


def foreign_objects(space: Space) -> list[tuple[str, Kind, Manifest]]:
    """One of each kind, each in the way of a deployment of its own, whose name comes with it."""
    kinds = {kind_of(m) for m in desired_state(Resource.parse(space.body(**ALL_KINDS)), Choices())}
    found = []
    for number, kind in enumerate(sorted({*kinds, SECRET})):
        owner = f"d{number}"
        resource = Resource.parse(space.body(owner, **ALL_KINDS))
        children = [
            *desired_state(resource, Choices()),
            secret(resource, resource.secret, "0" * 64),
        ]
        found.append((owner, kind, next(m for m in children if kind_of(m) == kind)))
    return found


@pytest.mark.parametrize("labelled", [False, True], ids=["bare", "with our labels"])
async def test_no_foreign_object_of_any_kind_is_touched(
    space: Space, operator: Service, labelled: bool
) -> None:
    cases = foreign_objects(space)
    assert len(cases) == 10
    for _, kind, manifest in cases:
        meta = manifest["metadata"]
        slim = {"name": meta["name"], "namespace": space.namespace}
        slim |= {"labels": meta["labels"]} if labelled else {}
        await space.cluster.create(kind, manifest | {"metadata": slim})
    for owner, _, _ in cases:
        await space.create(owner, **ALL_KINDS)
    for owner, kind, manifest in cases:
        await space.condition("Stalled", "True NameConflict", owner)
        meta = (await space.get(kind, manifest["metadata"]["name"]))["metadata"]
        applied = {
            each["manager"] for each in meta["managedFields"] if each["operation"] == "Apply"
        }
        assert not applied & {names.FIELD_MANAGER, names.REPLICAS_MANAGER}
        assert "ownerReferences" not in meta
        assert "deletionTimestamp" not in meta

"""What the operator makes of a deployment, and that it keeps it so, and no more."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pd_operator import names
from pd_operator.cluster import Cluster
from pd_operator.desired import Choices, RoleChoice, desired_state
from pd_operator.drift import drifted
from pd_operator.kinds import ALWAYS, DEPLOYMENT, PDDEPLOYMENT, SECRET, STATEFUL_SET
from pd_operator.resource import Resource
from pd_operator.service import Service
from tests.cluster.client import Client
from tests.operator.api_level.conftest import (
    SERVICES,
    Kubelet,
    Operator,
    Space,
    quiet,
    until,
    writes,
)

pytestmark = pytest.mark.cluster

EXPECTED = {
    ("ServiceAccount", "m-worker"), ("ServiceAccount", "m-router"), ("Role", "m-router"),
    ("RoleBinding", "m-router"), ("Service", "m-prefill"), ("Service", "m-decode"),
    ("Service", "m"), ("StatefulSet", "m-prefill"), ("StatefulSet", "m-decode"),
    ("Deployment", "m-router"), ("PodDisruptionBudget", "m-prefill"),
    ("PodDisruptionBudget", "m-decode"),
}  # fmt: skip


async def test_a_deployment_becomes_ready_and_then_nothing_is_written(
    space: Space, kubelet: Kubelet, operator: Service
) -> None:
    await space.create()
    await space.condition("Ready", "True AllAvailable")
    children = await space.children()
    assert set(children) == EXPECTED
    status = await space.status()
    assert (status["size"], status["phase"]) == ("1P2D/1P2D", "Ready")
    assert status["url"] == f"http://m.{space.namespace}.svc:8000"
    assert (await space.conditions())["RolloutComplete"] == "True RolledOut"
    await quiet(operator)


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


async def test_what_the_api_server_stores_is_no_drift(space: Space, operator: Service) -> None:
    limits = {"resources": {"limits": {"cpu": "0.5", "memory": "1024Mi"}}}
    made = await space.create(
        decode={"gpus": 0, "autoscaling": {"provider": "HPA", "maxReplicas": 2}, **limits},
        networkPolicy={"enabled": True},
        rdma={"mode": "HostDevices", "allowPrivileged": True, "hostNetwork": True},
        topology={"key": "rack", "colocate": "Preferred", "separateNodes": "Required"},
        router={"replicas": 2, "resources": {"requests": {"cpu": "1000m"}}},
    )
    await space.observed()
    roles = {role: RoleChoice(partition=0) for role in names.ROLES}
    wanted = desired_state(Resource.parse(made), Choices(roles=roles))
    live = await space.children()
    assert len(wanted) == len(live) == 15
    assert [m["kind"] for m in wanted if drifted(m, live[m["kind"], m["metadata"]["name"]])] == []


async def test_the_secret_is_made_once(space: Space, operator: Service) -> None:
    await space.create()
    await space.observed()
    secret = await space.get(SECRET, "m-keys")
    assert secret["immutable"] is True
    await space.edit(engine={"image": "worker:2"})
    await space.observed()
    assert await space.get(SECRET, "m-keys") == secret


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        (SERVICES, "m-prefill", {"spec": {"publishNotReadyAddresses": False}}),
        (STATEFUL_SET, "m-prefill",
         {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 20}}}}),
        (STATEFUL_SET, "m-decode", {"spec": {"replicas": 5}}),
        (DEPLOYMENT, "m-router", {"spec": {"replicas": 0}}),
        (ALWAYS[4], "m-router", {"rules": []}),
        (SERVICES, "m", {"metadata": {"labels": {names.DEPLOYMENT: "other"}}}),
        (SERVICES, "m", {"metadata": {"annotations": {names.APPLIED_HASH: None}}}),
    ],
    ids=["service", "template", "replicas", "deployment", "role", "label", "mark"],
)  # fmt: skip
async def test_drift_is_repaired(
    space: Space, operator: Service, kind: Any, name: str, change: Any
) -> None:
    await space.create()
    await space.observed()
    before = await space.get(kind, name)
    await space.cluster.patch(kind, space.namespace, name, change)

    async def repaired() -> bool:
        after = await space.get(kind, name)
        keys = ("spec", "rules")
        same = all(after.get(key) == before.get(key) for key in keys)
        return same and all(
            after["metadata"].get(key) == before["metadata"][key]
            for key in ("labels", "annotations")
        )

    await until("the child is as before", repaired)
    await quiet(operator, "status")


@pytest.mark.parametrize("kind", ALWAYS[:6], ids=lambda kind: kind.name)
async def test_deleted_children_come_back(space: Space, operator: Service, kind: Any) -> None:
    await space.create()
    await space.observed()
    [child, *_] = await space.list(kind)
    meta = child["metadata"]
    await space.cluster.delete(kind, space.namespace, meta["name"], meta["uid"])

    async def back() -> bool:
        return bool((await space.get(kind, meta["name"]))["metadata"]["uid"] != meta["uid"])

    await until("a new child", back)


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


async def test_what_is_wanted_no_more_goes(space: Space, operator: Service) -> None:
    await space.create(networkPolicy={"enabled": True}, router={"replicas": 2})
    await space.observed()
    extra = {("NetworkPolicy", "m-worker"), ("PodDisruptionBudget", "m-router")}
    assert set(await space.children()) == EXPECTED | extra
    await space.edit(networkPolicy={"enabled": False}, router={"enabled": False})

    async def pruned() -> bool:
        return set(await space.children()) == {
            (kind, name) for kind, name in EXPECTED if name not in ("m", "m-router")
        }

    await until("the router is gone", pruned)


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


async def test_what_the_api_server_refuses_is_told(space: Space, operator: Service) -> None:
    overlay = {"spec": {"containers": [{"name": "worker", "ports": [{"containerPort": 0}]}]}}
    await space.create(decode={"gpus": 0, "podTemplate": overlay})
    await space.condition("Stalled", "True InvalidSpec")
    await space.edit(decode={"podTemplate": None})

    async def cured() -> bool:
        return "Stalled" not in await space.conditions()

    await until("not stalled any more", cured)


async def test_events_tell_the_transitions_once(
    space: Space, api: Client, kubelet: Kubelet, operator: Service
) -> None:
    await space.create()
    await space.condition("Ready", "True")
    await asyncio.sleep(0.5)
    events = api.get("events.events.k8s.io", "-n", space.namespace)
    told = [(e["reason"], e["type"]) for e in events if e["regarding"]["kind"] == names.KIND]
    assert sorted(told) == [("AllAvailable", "Normal"), ("RolledOut", "Normal")]


async def test_an_operator_that_was_down_writes_nothing_where_nothing_changed(
    space: Space, kubelet: Kubelet, operators: Operator
) -> None:
    await operators.start()
    await space.create()
    await space.condition("Ready", "True")
    await operators.stop()
    before = await space.versions()
    service = await operators.start()
    await quiet(service)
    assert (writes(service), await space.versions()) == (0, before)


async def test_kubectl_wait_and_delete_work_as_expected(
    space: Space, api: Client, kubelet: Kubelet, operators: Operator
) -> None:
    await operators.start()
    await space.create()
    await space.condition("Ready", "True")
    wait = ("wait", "--for=condition=Ready", "pdd/m", "-n", space.namespace, "--timeout=5s")
    assert "condition met" in api.kubectl(*wait)
    await operators.stop()
    api.kubectl("delete", "pdd", "m", "-n", space.namespace, "--timeout=20s")

    async def collected() -> bool:
        return not await space.children()

    await until("everything is collected without an operator", collected)
    assert not (await space.cluster.list(SECRET, space.namespace, names.MANAGED_SELECTOR))[0]


async def test_a_successor_of_the_same_name_waits_for_the_garbage(
    space: Space, kubelet: Kubelet, operator: Service
) -> None:
    old = await space.create()
    await space.condition("Ready", "True")
    await space.delete()
    new = await space.create()
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    await space.condition("Ready", "True")
    owners = {c["metadata"]["ownerReferences"][0]["uid"] for c in (await space.children()).values()}
    assert owners == {new["metadata"]["uid"]}


async def test_a_namespace_goes_with_everything_in_it(
    api: Client, cluster: Cluster, operators: Operator
) -> None:
    space = Space(api, cluster, f"{operators.namespace}-gone")
    api.kubectl("create", "namespace", space.namespace)
    await operators.start(namespace=(space.namespace,))
    await space.create()
    await space.observed()
    await operators.stop()
    api.kubectl("delete", "namespace", space.namespace, "--timeout=60s")
    assert (await cluster.list(PDDEPLOYMENT, space.namespace))[0] == []

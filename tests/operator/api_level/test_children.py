"""What the operator makes of a deployment, and that it keeps it so, and no more."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from pd_operator import names
from pd_operator.desired import Choices, RoleChoice, desired_state
from pd_operator.drift import drifted
from pd_operator.kinds import ALWAYS, DEPLOYMENT, SECRET, STATEFUL_SET
from pd_operator.resource import Resource
from pd_operator.service import Service
from tests.cluster.client import Client
from tests.operator.api_level.kubelet import Kubelet
from tests.operator.api_level.operators import Operator, quiet, settled, writes
from tests.operator.api_level.space import SERVICES, Space, until

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
    await quiet(space, operator)


async def test_the_status_tells_each_role(
    space: Space, api: Client, kubelet: Kubelet, operator: Service
) -> None:
    await space.create()
    await space.condition("RolloutComplete", "True")
    await settled(space, operator)
    status = await space.status()
    counts = {"desired": 2, "replicas": 2, "ready": 2, "updated": 2, "draining": 0}
    assert status["decode"] | counts == status["decode"]
    assert status["decode"]["workload"] == "m-decode"
    chosen = ("-n", space.namespace, "-l", status["decode"]["selector"])
    pods = await asyncio.to_thread(api.get, "pods", *chosen)
    assert {pod["metadata"]["name"] for pod in pods} == {"m-decode-0", "m-decode-1"}
    assert status["bootstrapEndpoints"] == [f"m-prefill-0.m-prefill.{space.namespace}.svc:8998"]
    assert status["currentRevision"] == status["updateRevision"]
    seen = {each["observedGeneration"] for each in status["conditions"]}
    assert seen == {status["observedGeneration"]} == {1}


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
    await quiet(space, operator)


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
    await space.condition("RolloutComplete", "True")
    await quiet(space, operator)
    events = api.get("events.events.k8s.io", "-n", space.namespace)
    told = Counter(e["reason"] for e in events if e["regarding"]["kind"] == names.KIND)
    assert told.keys() >= {"AllAvailable", "RolledOut"}
    assert set(told.values()) == {1}  # more where the router is ready after the workers


async def test_an_operator_that_was_down_writes_nothing_where_nothing_changed(
    space: Space, kubelet: Kubelet, operators: Operator
) -> None:
    first = await operators.start()
    await space.create()
    await space.condition("Ready", "True")
    await settled(space, first)
    await operators.stop()
    before = await space.versions()
    second = await operators.start()
    await quiet(space, second)
    assert (writes(second), await space.versions()) == ([], before)

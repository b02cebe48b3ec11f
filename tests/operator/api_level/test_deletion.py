"""Deployments, and their namespaces, go without anybody's help."""

from __future__ import annotations

import asyncio

import pytest

from pd_operator.cluster import Cluster
from pd_operator.kinds import ALWAYS, CONTROLLER_REVISION, EVENT, PDDEPLOYMENT, SECRET
from pd_operator.service import Service
from tests.cluster.client import Client
from tests.operator.api_level.kubelet import Kubelet
from tests.operator.api_level.operators import Operator
from tests.operator.api_level.space import Space, until

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("down", [False, True], ids=["operator up", "operator down"])
async def test_a_deployment_is_waited_for_and_deleted_by_kubectl(
    space: Space, api: Client, kubelet: Kubelet, operators: Operator, down: bool
) -> None:
    await operators.start()
    await space.create()
    wait = ("wait", "--for=condition=Ready", "pdd/m", "-n", space.namespace, "--timeout=60s")
    assert "condition met" in await asyncio.to_thread(api.kubectl, *wait)
    if down:
        await operators.stop()
    delete = ("delete", "pdd", "m", "-n", space.namespace, "--timeout=20s")
    await asyncio.to_thread(api.kubectl, *delete)

    async def collected() -> bool:
        kinds = (*ALWAYS, SECRET, CONTROLLER_REVISION)
        lists = [await space.cluster.list(kind, space.namespace) for kind in kinds]
        found = {m["metadata"]["name"] for items, _ in lists for m in items}
        return not any(name == "m" or name.startswith("m-") for name in found)

    await until("everything is collected", collected)


async def test_a_successor_of_the_same_name_waits_for_the_garbage(
    space: Space, kubelet: Kubelet, operator: Service
) -> None:
    old = await space.create()
    await space.condition("Ready", "True")
    await space.delete()
    new = await space.create()
    assert new["metadata"]["uid"] != old["metadata"]["uid"]

    async def all_its_own() -> bool:
        children = (await space.children()).values()
        owners = {each["metadata"]["ownerReferences"][0]["uid"] for each in children}
        return len(children) >= 12 and owners == {new["metadata"]["uid"]}

    await until("all children are the successor's", all_its_own, timeout_s=120)
    await space.condition("Ready", "True")
    told, _ = await space.cluster.list(EVENT, space.namespace)
    assert [each["note"] for each in told if each["reason"] == "NameConflict"] == []


@pytest.mark.parametrize("down", [False, True], ids=["operator up", "operator down"])
async def test_a_namespace_goes_with_everything_in_it(
    space: Space, api: Client, cluster: Cluster, kubelet: Kubelet, operators: Operator, down: bool
) -> None:
    service = await operators.start()
    await space.create()
    await space.condition("Ready", "True")
    if down:
        await operators.stop()
    delete = ("delete", "namespace", space.namespace, "--timeout=60s")
    await asyncio.to_thread(api.kubectl, *delete)
    assert (await cluster.list(PDDEPLOYMENT, space.namespace))[0] == []

    async def forgotten() -> bool:
        return down or (not service.store.keys() and service.queue.idle)

    await until("the operator has forgotten it", forgotten)

"""Who writes replicas: the spec, or whoever scales, and never both."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pd_operator import names
from pd_operator.kinds import ALWAYS, POD, STATEFUL_SET
from pd_operator.service import Service
from tests.operator.api_level.kubelet import Kubelet
from tests.operator.api_level.operators import Operator, quiet
from tests.operator.api_level.space import Space, until

pytestmark = pytest.mark.cluster

HPAS = ALWAYS[8]
EXTERNAL = {"gpus": 0, "replicas": 2, "autoscaling": {"provider": "External", "maxReplicas": 8}}


def hpa(**more: Any) -> dict[str, Any]:
    metrics = [{"type": "CPU", "target": 50}]
    scaling = {"provider": "HPA", "maxReplicas": 5, "metrics": metrics, **more}
    return {"gpus": 0, "replicas": 2, "autoscaling": scaling}


async def has(space: Space, replicas: int) -> None:
    async def done() -> bool:
        return await space.replicas("decode") == replicas

    await until(f"decode has {replicas} replicas", done)


async def test_the_spec_rules_without_autoscaling(space: Space, operator: Service) -> None:
    await space.create()
    await space.observed()
    await space.scale("decode", 5)
    await has(space, 2)
    await space.edit(decode={"replicas": 3})
    await has(space, 3)


async def test_a_cluster_without_keda_and_prometheus_is_told_of(
    space: Space, operator: Service
) -> None:
    keda = {"provider": "KEDA", "maxReplicas": 3, "prometheusAddress": "http://p"}
    scaled = {"gpus": 0, "autoscaling": keda}
    await space.create(decode=scaled, monitoring={"podMonitor": True})
    await space.condition("ScalingActive", "False KEDAMissing")
    await space.condition("MonitoringActive", "False PodMonitorMissing")


@pytest.mark.parametrize("role", [EXTERNAL, hpa()], ids=["External", "HPA"])
async def test_what_others_write_stays_through_everything(
    space: Space, operators: Operator, role: dict[str, Any]
) -> None:
    service = await operators.start()
    await space.create(decode=role)
    await space.observed()
    assert await space.replicas("decode") == 2
    await space.scale("decode", 4)
    await quiet(space, service)
    await space.edit(decode={"priorityClassName": None, "shmSize": "1Gi", "replicas": 1})
    await space.observed()
    assert await space.replicas("decode") == 4
    await operators.stop()
    await space.scale("decode", 3)
    await quiet(space, await operators.start())
    assert await space.replicas("decode") == 3
    await space.edit(engine={"image": "worker:2"})
    await space.observed()
    assert await space.replicas("decode") == 3


async def test_replicas_belong_to_nobody_of_us_after_others_wrote_them(
    space: Space, operator: Service
) -> None:
    await space.create(decode=EXTERNAL)
    await space.observed()
    await space.scale("decode", 4)
    fields = (await space.get(STATEFUL_SET, "m-decode"))["metadata"]["managedFields"]
    owners = [e["manager"] for e in fields if "f:replicas" in e["fieldsV1"].get("f:spec", {})]
    assert not {names.FIELD_MANAGER, names.REPLICAS_MANAGER} & set(owners)


async def test_autoscaling_can_be_switched_on_and_off_without_a_jump(
    space: Space, operator: Service
) -> None:
    await space.create()
    await space.observed()
    await space.edit(decode={"autoscaling": EXTERNAL["autoscaling"]})
    await space.observed()
    await space.scale("decode", 4)
    await space.edit(decode={"replicas": 4, "autoscaling": None})
    await space.observed()
    await quiet(space, operator)
    assert await space.replicas("decode") == 4


async def test_a_suspension_and_its_end(space: Space, operator: Service) -> None:
    await space.create(decode=EXTERNAL)
    await space.observed()
    await space.edit(suspend=True)
    await has(space, 0)
    await space.condition("Ready", "False Suspended")
    await space.edit(suspend=False)
    await has(space, 2)


@pytest.mark.parametrize("role", [EXTERNAL, hpa()], ids=["External", "HPA"])
async def test_what_was_created_suspended_begins_when_that_ends(
    space: Space, operator: Service, role: dict[str, Any]
) -> None:
    await space.create(decode=role, suspend=True)
    await space.observed()
    assert await space.replicas("decode") == 0
    await space.edit(suspend=False)
    await has(space, 2)
    await quiet(space, operator)


async def test_an_hpa_is_made_changed_and_removed(space: Space, operator: Service) -> None:
    await space.create(decode=hpa())
    await space.observed()
    made = await space.get(HPAS, "m-decode")
    assert made["spec"]["scaleTargetRef"]["name"] == "m-decode"
    assert (made["spec"]["minReplicas"], made["spec"]["maxReplicas"]) == (1, 5)
    await space.edit(decode={"autoscaling": {"maxReplicas": 7}})

    async def changed() -> bool:
        return bool((await space.get(HPAS, "m-decode"))["spec"]["maxReplicas"] == 7)

    await until("the new bound", changed)
    await space.edit(decode={"autoscaling": None})

    async def gone() -> bool:
        return not await space.list(HPAS)

    await until("no HPA", gone)


async def test_the_hpa_controller_scales_the_stateful_set(space: Space, operator: Service) -> None:
    await space.create(decode=hpa(minReplicas=4) | {"replicas": 4})
    await has(space, 4)
    await space.edit(decode={"autoscaling": {"minReplicas": 5}})
    await has(space, 5)  # by the controller: it needs no metrics to keep to its bounds
    await quiet(space, operator)


async def test_a_scale_down_drains_before_it_takes_pods(
    space: Space, kubelet: Kubelet, operator: Service
) -> None:
    await space.create(decode={"gpus": 0, "replicas": 3, "drainTimeoutSeconds": 3})
    await space.condition("Ready", "True")
    await space.edit(decode={"replicas": 2})
    marked = []

    async def shrunk() -> bool:
        last = [p for p in await space.list(POD) if p["metadata"]["name"] == "m-decode-2"]
        if last and last[0]["metadata"]["labels"][names.ROUTABLE] == "false":
            marked.append(await space.replicas("decode"))
        return await space.replicas("decode") == 2

    await until("two decode workers", shrunk)
    assert marked[0] == 3


async def test_both_roles_are_scaled_independently(
    space: Space, kubelet: Kubelet, operator: Service
) -> None:
    await space.create(prefill=EXTERNAL, decode=EXTERNAL)
    await space.condition("Ready", "True")
    await asyncio.gather(space.scale("prefill", 3), space.scale("decode", 5))

    async def told() -> bool:
        return bool((await space.status())["size"] == "3P5D/3P5D")

    await until("3P5D", told)
    await space.condition("Ready", "True")

"""Pods that run at once, on nodes that are not there: the whole way to Ready, and a rollout."""

from __future__ import annotations

import asyncio

import pytest

from pd_operator.kinds import POD
from pd_operator.service import Service
from tests.operator.api_level.operators import quiet
from tests.operator.api_level.space import Space
from tests.operator.api_level.test_rollouts import Witness, rolled_out

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


async def test_a_deployment_serves_on_real_scheduling_and_then_is_left_alone(
    space: Space, operator: Service
) -> None:
    await space.create(prefill={"gpus": 1, "replicas": 2}, decode={"gpus": 1, "replicas": 4})
    await space.condition("Ready", "True AllAvailable")
    assert (await space.status())["size"] == "2P4D/2P4D"
    assert all(pod["spec"]["nodeName"] for pod in await space.list(POD))
    await quiet(space, operator)


async def test_a_new_image_is_rolled_out_and_a_pair_serves_all_the_time(
    space: Space, operator: Service
) -> None:
    await space.create(prefill={"gpus": 0, "replicas": 2}, decode={"gpus": 0, "replicas": 3})
    await space.condition("Ready", "True")
    witness = Witness(space)
    watching = asyncio.create_task(witness.run())
    await space.edit(engine={"image": "worker:2"})
    await rolled_out(space, "worker:2", "2P3D/2P3D")
    watching.cancel()
    assert witness.least >= 1
    await quiet(space, operator)

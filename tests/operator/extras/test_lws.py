"""LeaderWorkerSets and PDDeployments in one cluster, even of one name, leave each other alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pd_operator.kinds import POD, STATEFUL_SET, Kind
from pd_operator.service import Service
from tests.operator.api_level.operators import quiet
from tests.operator.api_level.space import SERVICES, Space, until

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("lws")]

GROUPS = Kind("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets")


async def group(space: Space, name: str) -> dict[str, Any]:
    """A LeaderWorkerSet of one pair, once it runs."""
    template = {"spec": {"containers": [{"name": "main", "image": "none.invalid/none"}]}}
    made = await space.cluster.create(
        GROUPS,
        {
            "apiVersion": GROUPS.api_version,
            "kind": GROUPS.name,
            "metadata": {"name": name, "namespace": space.namespace},
            "spec": {
                "replicas": 1,
                "leaderWorkerTemplate": {"size": 2, "workerTemplate": template},
            },
        },
    )

    async def available() -> bool:
        status = (await space.get(GROUPS, name)).get("status", {})
        return bool(status.get("readyReplicas") == 1)

    await until("a pair of LeaderWorkerSet", available)
    return made


async def test_pods_of_ours_pass_its_webhooks_unchanged(space: Space, operator: Service) -> None:
    await group(space, "pair")
    await space.create()
    await space.condition("Ready", "True AllAvailable")
    for pod in await space.list(POD):
        marks = {**pod["metadata"]["labels"], **pod["metadata"].get("annotations", {})}
        assert not [mark for mark in marks if "leaderworkerset" in mark]
    await quiet(space, operator)


async def test_a_name_that_it_has_taken_stays_its_own(space: Space, operator: Service) -> None:
    await group(space, "m")
    service, workers = await space.get(SERVICES, "m"), await space.get(STATEFUL_SET, "m")
    await space.create()
    await space.condition("Stalled", "True NameConflict")
    assert await space.get(SERVICES, "m") == service
    assert (await space.get(STATEFUL_SET, "m"))["spec"] == workers["spec"]
    await asyncio.to_thread(space.api.kubectl, "delete", "lws", "m", "-n", space.namespace)
    await space.condition("Ready", "True AllAvailable")
    assert (await space.get(SERVICES, "m"))["metadata"]["uid"] != service["metadata"]["uid"]

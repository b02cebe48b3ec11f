"""What the operator's process notices of the cluster around it."""

from __future__ import annotations

import asyncio
from typing import Any

from pd_operator.cluster import Cluster
from pd_operator.kinds import POD_MONITOR, SCALED_OBJECT
from pd_operator.options import RunOptions
from pd_operator.service import Service
from tests.operator.client.conftest import Script, status


def serves(*plurals: str) -> dict[str, Any]:
    return {"kind": "APIResourceList", "resources": [{"name": each} for each in plurals]}


async def test_a_kind_that_is_served_later_is_noticed(cluster: Cluster, script: Script) -> None:
    service = Service(RunOptions(resync_s=0.01), cluster)
    script.replies = [status(404), status(503), serves(), serves("scaledjobs", "scaledobjects")]
    async with asyncio.timeout(10):
        await service._until_more_kinds(frozenset([POD_MONITOR.name]))
    assert {path for _, path, _, _ in script.seen} == {f"/apis/{SCALED_OBJECT.api_version}"}
    assert len(script.seen) == 4

"""A PDDeployment that KEDA scales by a real Prometheus, and an operator that lets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pd_operator import names
from pd_operator.kinds import POD_MONITOR, SCALED_OBJECT, STATEFUL_SET
from tests.cluster.control_plane import ControlPlane, free_ports
from tests.cluster.prometheus import prometheus
from tests.operator.api_level.operators import Operator, quiet
from tests.operator.api_level.space import Space, until
from tests.operator.extras.fleet import Fleet, Worker
from tests.operator.extras.test_prometheus import installed

__all__ = ["installed"]

pytestmark = [
    pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("keda"),
    pytest.mark.timeout(300),
]  # fmt: skip

WAITING = "num_waiting_reqs"


def scaled(address: str) -> dict[str, Any]:
    """A prefill role of one to five workers with four waiting requests each."""
    autoscaling = {
        "provider": "KEDA",
        "maxReplicas": 5,
        "prometheusAddress": address,
        "scaleUpStabilizationSeconds": 0,
        "scaleDownStabilizationSeconds": 0,
    }
    return {"gpus": 0, "drainTimeoutSeconds": 0, "autoscaling": autoscaling}


async def told(space: Space, size: str) -> None:
    async def done() -> bool:
        return bool((await space.status()).get("size") == size)

    await until(size, done, timeout_s=120)


async def test_keda_scales_our_stateful_set_by_our_query_and_nobody_fights_it(
    space: Space, plane: ControlPlane, operators: Operator, fleet: Fleet, tmp_path: Path
) -> None:
    service = await operators.start()
    [port] = free_ports(1)
    engine = {"image": "worker:1", "port": fleet.port}
    await space.create(
        prefill=scaled(f"http://127.0.0.1:{port}"), engine=engine, monitoring={"podMonitor": True}
    )
    await space.observed()
    busy = Worker("prefill", {WAITING: 12})
    await fleet.join(space, "m-prefill-0", busy)
    monitor = await space.get(POD_MONITOR, "m")
    with prometheus(plane, tmp_path, fleet.scraped(monitor), port=port):
        await told(space, "3P2D/3P2D")
        for ordinal in (1, 2):
            await fleet.join(space, f"m-prefill-{ordinal}", Worker("prefill", {WAITING: 0}))
        await quiet(space, service)
        assert await space.replicas("prefill") == 3
        live = await space.get(STATEFUL_SET, "m-prefill")
        owners = [
            each["manager"] for each in live["metadata"]["managedFields"]
            if "f:replicas" in each["fieldsV1"].get("f:spec", {})
        ]  # fmt: skip
        assert not {names.FIELD_MANAGER, names.REPLICAS_MANAGER} & set(owners)
        busy.gauges[WAITING] = 0
        await told(space, "1P2D/1P2D")
        await quiet(space, service)
    status = (await space.get(SCALED_OBJECT, "m-prefill"))["status"]
    assert {"type": "Ready", "status": "True"}.items() <= status["conditions"][0].items()

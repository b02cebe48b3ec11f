"""A real Prometheus scrapes what our PodMonitor names, and our KEDA queries mean what they say."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from pd_operator import names
from pd_operator.kinds import POD_MONITOR
from pd_operator.objects.scalers import scaler
from pd_operator.resource import Resource
from pd_operator.service import Service
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import cannot
from tests.cluster.packages import MissingError, require
from tests.cluster.prometheus import prometheus
from tests.operator.api_level.space import Space, until
from tests.operator.extras.fleet import Fleet, Worker

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

EXPECTED: dict[tuple[names.Role, str], float] = {
    ("prefill", "QueueDepth"): 3 + 5,
    ("prefill", "TTFT"): 0.2 + 0.4,
    ("prefill", "PrefillTokenRate"): 100 + 300,
    ("decode", "KVUtilization"): 0.25 + 0.5,
    ("decode", "ITL"): 0.02 + 0.04,
    ("decode", "RunningRequests"): 7 + 8,
    ("decode", "PreallocQueue"): 1 + 2,
    ("decode", "TransferQueue"): 0 + 4,
}
"""The sum over two workers of each: KEDA divides it by their number."""


@pytest.fixture(autouse=True)
def installed() -> None:
    try:
        require("prometheus")
    except MissingError as problem:
        cannot(str(problem))


def queries(space: Space) -> dict[tuple[names.Role, str], str]:
    """By role and signal, as they stand in the ScaledObjects."""
    found: dict[tuple[names.Role, str], str] = {}
    for role in names.ROLES:
        signals = [signal for each, signal in EXPECTED if each == role]
        scaling: dict[str, Any] = {
            "provider": "KEDA",
            "maxReplicas": 9,
            "prometheusAddress": "http://prometheus",
            "metrics": [{"type": signal, "target": 1} for signal in signals],
        }
        spec: dict[str, Any] = {role: {"autoscaling": scaling}}
        made = scaler(Resource.parse(space.body(**spec)), role)
        assert made is not None
        triggers = [trigger["metadata"]["query"] for trigger in made["spec"]["triggers"]]
        found |= {(role, signal): query for signal, query in zip(signals, triggers, strict=True)}
    return found


def prefill(waiting: int, tokens_s: float) -> Worker:
    return Worker("prefill", {"num_waiting_reqs": waiting}, {"prompt_tokens": tokens_s})


def decode(usage: float, running: int, prealloc: int, transfer: int) -> Worker:
    gauges = {
        "kv_usage": usage,
        "num_running_reqs": running,
        "num_decode_prealloc_queue_reqs": prealloc,
        "num_decode_transfer_queue_reqs": transfer,
    }
    return Worker("decode", gauges)


async def test_the_queries_of_every_signal_give_the_sum_over_the_workers(
    space: Space, plane: ControlPlane, operator: Service, fleet: Fleet, tmp_path: Path
) -> None:
    size = {"gpus": 0, "replicas": 2}
    common = {
        "engine": {"image": "worker:1", "port": fleet.port},
        "monitoring": {"podMonitor": True},
    }
    for name in ("m", "other"):
        await space.create(name, prefill=size, decode=size, **common)
        await space.observed(name)
    workers = {
        "m-prefill-0": prefill(3, 100), "m-prefill-1": prefill(5, 300),
        "m-decode-0": decode(0.25, 7, 1, 0), "m-decode-1": decode(0.5, 8, 2, 4),
        "other-prefill-0": prefill(1000, 1000), "other-decode-0": decode(1.0, 1000, 1000, 1000),
    }  # fmt: skip
    for pod, worker in workers.items():
        await fleet.join(space, pod, worker)
    times = {"m-prefill-0": 0.2, "m-prefill-1": 0.4, "m-decode-0": 0.02, "m-decode-1": 0.04}
    monitors = [await space.get(POD_MONITOR, name) for name in ("m", "other")]
    with prometheus(plane, tmp_path, *map(fleet.scraped, monitors)) as server:
        seen: dict[tuple[names.Role, str], float | None] = {}

        async def right() -> bool:
            for pod, seconds in times.items():
                metrics = workers[pod].metrics
                (metrics.ttft if "prefill" in pod else metrics.itl).observe(seconds)
            for key, query in queries(space).items():
                seen[key] = await asyncio.to_thread(server.query, query)
            return seen == pytest.approx(EXPECTED, rel=0.05)

        with contextlib.suppress(AssertionError):  # a rate is right after a whole minute
            await until("the right sums", right, timeout_s=120)
        assert seen == pytest.approx(EXPECTED, rel=0.05)
        assert len(await asyncio.to_thread(server.healthy)) == len(workers)

"""Workers' metrics without workers: for kwok's pods, which are not there, one server answers at
addresses of loopback with a worker's own metrics.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from pd_operator.cluster import Cluster
from pd_operator.kinds import POD
from pd_operator.resource import Manifest
from pd_worker.api.metrics import Metrics
from pd_worker.messages import Heartbeat
from tests.cluster.prometheus import discovered, scrape_config
from tests.operator.api_level.space import Space, until

PODS = "10.77.0.1/16"
"""The pods' network."""


def loopback(address: str) -> str:
    """Where a pod is answered for. (Services want no addresses of loopback in their endpoints.)"""
    return address.replace("10.", "127.", 1)


@dataclass
class Worker:
    """What one worker says of itself, under the names that its scheduler gives."""

    role: str
    gauges: dict[str, float] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)
    """Growth of its counters in a second."""

    def __post_init__(self) -> None:
        self.metrics = Metrics("tiny", self.role, self._beat)
        self._began = time.monotonic()

    def _beat(self) -> Heartbeat:
        age_s = time.monotonic() - self._began
        counters = {name: rate * age_s for name, rate in self.rates.items()}
        return Heartbeat(loop_age_s=0.0, gauges=self.gauges, counters=counters)


@dataclass
class Fleet:
    """Workers by the address of their pod."""

    cluster: Cluster
    port: int = 0
    workers: dict[str, Worker] = field(default_factory=dict)

    async def join(self, space: Space, pod: str, worker: Worker) -> None:
        """The worker is in that pod, as soon as it has an address."""

        async def done() -> bool:
            address = (await space.get(POD, pod))["status"].get("podIP")
            if address:
                self.workers[loopback(address)] = worker
            return bool(address)

        await until(f"an address of {pod}", done)

    def scraped(self, monitor: Manifest) -> Manifest:
        """Of Prometheus' configuration: what this PodMonitor asks for, every second."""
        where = f"http://127.0.0.1:{self.port}/targets/{monitor['metadata']['namespace']}"
        return scrape_config(monitor, where, "1s")

    async def targets(self, request: web.Request) -> web.Response:
        """GET /targets/NAMESPACE, for Prometheus."""
        pods, _ = await self.cluster.list(POD, request.match_info["namespace"])
        return web.json_response(
            [
                found | {"targets": [loopback(target) for target in found["targets"]]}
                for found in discovered(pods)
            ]
        )

    async def metrics(self, request: web.Request) -> web.Response:
        """GET /metrics of the worker whose address was asked."""
        assert request.transport is not None
        address = request.transport.get_extra_info("sockname")[0]
        worker = self.workers.get(address)
        if worker is None:
            raise web.HTTPNotFound
        return web.Response(body=worker.metrics.text())


@asynccontextmanager
async def serving(cluster: Cluster) -> AsyncIterator[Fleet]:
    """A fleet that answers, without workers yet."""
    fleet = Fleet(cluster)
    app = web.Application()
    app.router.add_get("/metrics", fleet.metrics)
    app.router.add_get("/targets/{namespace}", fleet.targets)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "0.0.0.0", 0).start()
    fleet.port = int(runner.addresses[0][1])
    yield fleet
    await runner.cleanup()

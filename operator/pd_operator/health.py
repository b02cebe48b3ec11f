"""/healthz, /readyz and /metrics of the operator itself.

Alive means that the cluster has been heard of lately, not that a port answers: a watch that has
gone silent looks well from outside.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from aiohttp import web

from pd_operator.reflector import Reflector
from pd_operator.telemetry import Telemetry

SILENT_S = 240.0
"""A watch is opened anew after a little more than a minute of silence; after so long it is dead."""
STUCK_S = 300.0
"""Longer than all attempts at a request of the API server take together."""


class Health:
    """Judges the parts when asked."""

    def __init__(
        self,
        reflectors: Sequence[Reflector],
        stuck_s: Callable[[], float],
        guard_problem: Callable[[], str],
    ) -> None:
        self._reflectors, self._stuck_s, self._guard_problem = reflectors, stuck_s, guard_problem

    def fault(self) -> str:
        """Why the operator should be restarted; empty while it is well."""
        now = time.monotonic()
        silent = [str(r.scope) for r in self._reflectors if now - r.seen_at > SILENT_S]
        if silent:
            return f"not heard of for {SILENT_S:g} s: {', '.join(silent)}"
        if (stuck_s := self._stuck_s()) > STUCK_S:
            return f"no deployment has been looked at for {stuck_s:.0f} s"
        return self._guard_problem()

    def missing(self) -> str:
        """What must still happen before the operator can act; empty when it can."""
        unlisted = [str(r.scope) for r in self._reflectors if not r.listed.is_set()]
        return f"not listed yet: {', '.join(unlisted)}" if unlisted else ""


async def serve(health: Health, telemetry: Telemetry, port: int) -> tuple[web.AppRunner, int]:
    """Start to answer on all addresses; the runner to clean up, and the port."""

    async def told(problem: str) -> web.Response:
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    async def healthz(_: web.Request) -> web.Response:
        return await told(health.fault())

    async def readyz(_: web.Request) -> web.Response:
        return await told(health.missing())

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=telemetry.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, None, port).start()
    return runner, int(runner.addresses[0][1])

"""All parts of one router, joined, and its own state's endpoints."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from pd_worker.config import Role, shared_secret
from pd_worker.router.discovery import Discovery, StaticDiscovery
from pd_worker.router.fleet import Fleet, readiness
from pd_worker.router.inference import Inference
from pd_worker.router.kubernetes import Joined, KubernetesDiscovery
from pd_worker.router.metrics import Metrics
from pd_worker.router.options import RouterOptions
from pd_worker.router.registry import Registry
from pd_worker.router.retry import Dispatcher
from pd_worker.router.selector import Selector
from pd_worker.router.worker import WorkerSpec

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Router:
    """All parts of one router, joined; needs a running loop."""

    def __init__(self, options: RouterOptions) -> None:
        self._worker_wait_s = options.limits.worker_wait_s
        self.session = _client(options.limits.connect_timeout_s)
        self.discovery = StaticDiscovery(listed(options))
        self.registry = Registry(_sources(options, self.discovery), self.session, options.health)
        self.metrics = Metrics(self.registry)
        selector = Selector(self.registry, options)
        self.dispatcher = Dispatcher(self.session, selector, options.limits, self.metrics)
        self.inference = Inference(
            self.dispatcher, self.metrics, trust_pd_fields=options.trust_client_pd_fields
        )
        self.fleet = Fleet(self.registry, self.discovery, self.session, shared_secret())
        admission = self.dispatcher.admission
        self.metrics.inflight.set_function(lambda: admission.inflight)
        self.metrics.queued.set_function(lambda: admission.queued)

    async def close(self) -> None:
        """End the looks at workers and every connection."""
        await self.registry.stop()
        await self.session.close()

    async def health(self, request: web.Request) -> web.Response:
        """GET /health: the router's own tasks run."""
        problem = self.registry.problem
        return _json({"healthy": not problem, "reason": problem}, ok=not problem)

    async def ready(self, request: web.Request) -> web.Response:
        """GET /ready: a request can be served now."""
        report = readiness(self.registry, self._worker_wait_s)
        if self.inference.draining:
            report = {"ready": False, "reason": "draining"}
        return _json(report, ok=report["ready"])

    async def show_metrics(self, request: web.Request) -> web.Response:
        """GET /metrics."""
        return web.Response(body=self.metrics.text(), headers={"Content-Type": METRICS_TYPE})


def _sources(options: RouterOptions, static: StaticDiscovery) -> Discovery:
    """Where workers come from: the list, and the cluster where one is named."""
    if not options.kubernetes.kubernetes_namespace:
        return static
    return Joined((static, KubernetesDiscovery(options.kubernetes)))


def listed(options: RouterOptions) -> list[WorkerSpec]:
    """The workers that the command line names; raises ConfigError."""
    flags: tuple[tuple[Role, tuple[tuple[str, ...], ...]], ...] = (
        ("prefill", options.prefill),
        ("decode", options.decode),
        ("unified", options.worker),
    )
    return [
        WorkerSpec.parse(role, text) for role, groups in flags for group in groups for text in group
    ]


def _client(connect_timeout_s: float) -> aiohttp.ClientSession:
    """No limit on connections (streams are long and many), no time limit but for connecting (the
    request has its own), no cookies (requests share nothing)."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"Accept-Encoding": "identity"},
    )


def _json(value: Any, *, ok: bool) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(status=200 if ok else 503, body=body, content_type="application/json")

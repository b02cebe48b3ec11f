"""The API process: builds the application, listens, drains on SIGTERM.

launch/worker.py starts the scheduler process and then calls `serve` with the two ipc endpoints.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from pd_worker.api import chat, completions, health, native, openai
from pd_worker.api.context import CONTEXT, Context
from pd_worker.api.engine import Engine
from pd_worker.api.failures import errors_to_json
from pd_worker.api.metrics import Metrics
from pd_worker.api.tokenizer import load_tokenizer, read_json
from pd_worker.config import WorkerConfig

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 16 << 20
"""A prompt of the longest contexts fits several times."""

EXIT_WAIT_S = 15.0
"""Longest wait for the scheduler process after Shutdown."""

LINGER_S = 2.0
"""After the scheduler process died: time for running requests to get their errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Another application on the same loop, such as prefill's BootstrapServer."""

    app: web.Application
    socket: socket.socket
    """Bound by the caller, so that its port is known before."""


ROUTES = [
    web.get("/v1/models", openai.models),
    web.post("/v1/completions", completions.completions),
    web.post("/v1/chat/completions", chat.chat_completions),
    web.post("/generate", native.generate),
    web.post("/tokenize", native.tokenize),
    web.post("/detokenize", native.detokenize),
    web.post("/abort_request", native.abort_request),
    web.post("/flush_cache", native.flush_cache),
    web.get("/flush_cache", native.flush_cache),
    web.get("/health", health.health),
    web.get("/health_generate", health.ready),
    web.get("/ready", health.ready),
    web.get("/metrics", health.metrics),
    web.get("/server_info", health.server_info),
    web.get("/get_server_info", health.server_info),
    web.get("/model_info", health.model_info),
    web.get("/get_model_info", health.model_info),
    web.get("/get_load", health.get_load),
    web.get("/v1/loads", health.loads),
]


def make_app(context: Context) -> web.Application:
    """The worker's HTTP API."""
    app = web.Application(middlewares=[errors_to_json], client_max_size=MAX_BODY_BYTES)
    app[CONTEXT] = context
    app.add_routes(ROUTES)
    return app


def make_engine(
    config: WorkerConfig,
    to_scheduler: str,
    from_scheduler: str,
    exit_code: Callable[[], int | None],
) -> Engine:
    """The engine client, bounded by what the scheduler may hold."""
    limits = config.scheduler
    return Engine(
        to_scheduler,
        from_scheduler,
        exit_code=exit_code,
        max_samples=limits.max_running_requests + limits.max_queued_requests,
    )


async def serve(
    config: WorkerConfig,
    *,
    model_dir: Path,
    to_scheduler: str,
    from_scheduler: str,
    exit_code: Callable[[], int | None],
    sites: Sequence[Site] = (),
) -> int:
    """Serve until SIGTERM, SIGINT or the scheduler's end; returns the exit status.

    `exit_code` is None while the scheduler process lives. `sites` are up before the API and stay
    until the scheduler has shut down, since it unregisters there. A second signal ends at once.
    """
    engine = make_engine(config, to_scheduler, from_scheduler, exit_code)
    context = Context(
        config=config,
        model_dir=str(model_dir),
        model_facts=read_json(model_dir / "config.json"),
        engine=engine,
        tokenizer=load_tokenizer(model_dir),
        metrics=Metrics(config.model.name, config.role, lambda: engine.vitals.heartbeat),
    )
    async with engine, contextlib.AsyncExitStack() as stack:
        for site in sites:
            await stack.enter_async_context(listening(site.app, site.socket))
        api = bound_socket(config.server.host, config.server.port)
        await stack.enter_async_context(listening(make_app(context), api))
        host, port = api.getsockname()[:2]
        log.info(
            "listening on http://%s:%d role=%s",
            f"[{host}]" if ":" in host else host,
            port,
            config.role,
        )
        return await _until_stopped(engine, config.server.drain_timeout_s)


def bound_socket(host: str, port: int) -> socket.socket:
    """A TCP socket bound to host and port; 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


@contextlib.asynccontextmanager
async def listening(app: web.Application, sock: socket.socket) -> AsyncIterator[None]:
    """Serve an application on a bound socket while the context is open."""
    # handler_cancellation: a client that leaves cancels its handler, which aborts its samples.
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    await web.SockSite(runner, sock).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def _until_stopped(engine: Engine, drain_timeout_s: float) -> int:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    ended = asyncio.create_task(_scheduler_end(engine))
    stop = asyncio.create_task(stopped.wait())
    await asyncio.wait((ended, stop), return_when=asyncio.FIRST_COMPLETED)
    if not stop.done():
        log.error("%s", engine.vitals.fault())
        stop.cancel()
        await asyncio.sleep(LINGER_S)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
    log.info("draining: %d samples run", engine.num_samples)
    await engine.drain(drain_timeout_s)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(EXIT_WAIT_S):
            return await ended
    log.error("the scheduler process did not shut down in %.0f s", EXIT_WAIT_S)
    return 1


async def _scheduler_end(engine: Engine) -> int:
    while engine.vitals.exit_code is None:  # noqa: ASYNC110, a process's end is no event here
        await asyncio.sleep(0.1)
    return engine.vitals.exit_code

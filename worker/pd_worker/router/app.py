"""The router's web application and its process: `make_app` for tests and embedding, `run` for the
command line. Everything runs in one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from pd_worker.errors import ConfigError, RequestError, RequestFailed
from pd_worker.router.answer import error_body
from pd_worker.router.drain import until_drained
from pd_worker.router.fleet import MODEL_INFO, TO_ALL, TO_ANY
from pd_worker.router.inference import PATHS
from pd_worker.router.options import RouterOptions
from pd_worker.router.parts import Router, listed

MAX_BODY_BYTES = 16 << 20
SHUTDOWN_S = 0.5
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ROUTER = web.AppKey("router", Router)
ROUTES: tuple[tuple[str, tuple[str, ...], Callable[[Router], Handler]], ...] = (
    ("POST", PATHS, lambda router: router.inference.handle),
    ("GET", ("/v1/models",), lambda router: router.fleet.models),
    ("GET", ("/server_info", "/get_server_info"), lambda router: router.fleet.server_info),
    ("GET", MODEL_INFO, lambda router: router.fleet.to_any),
    ("POST", TO_ANY, lambda router: router.fleet.to_any),
    ("POST", TO_ALL, lambda router: router.fleet.to_all),
    ("GET", ("/workers",), lambda router: router.fleet.list_workers),
    ("POST", ("/workers",), lambda router: router.fleet.add_worker),
    ("DELETE", ("/workers",), lambda router: router.fleet.remove_worker),
    ("GET", ("/health",), lambda router: router.health),
    ("GET", ("/ready", "/health_generate"), lambda router: router.ready),
    ("GET", ("/metrics",), lambda router: router.show_metrics),
)


def make_app(options: RouterOptions) -> web.Application:
    """The application; its parts live from its start-up to its clean-up, at app[ROUTER].

    Serve it with handler_cancellation, else a client that leaves is not noticed. Raises
    ConfigError.
    """
    listed(options)
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[_errors_as_json])

    async def life(app: web.Application) -> AsyncIterator[None]:
        router = app[ROUTER] = Router(options)
        router.registry.start()
        yield
        await router.close()

    async def close_when_draining(request: web.Request, response: web.StreamResponse) -> None:
        if app[ROUTER].inference.draining:
            response.headers["Connection"] = "close"
            response.force_close()

    app.cleanup_ctx.append(life)
    app.on_response_prepare.append(close_when_draining)
    for method, paths, pick in ROUTES:
        for path in paths:
            app.router.add_route(method, path, _late(pick))
            if method == "GET":
                app.router.add_route("HEAD", path, _late(pick))
    return app


def run(options: RouterOptions) -> int:
    """Serve until SIGTERM or SIGINT, then drain; the exit status. Raises ConfigError."""
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    return asyncio.run(_serve(options))


async def _serve(options: RouterOptions) -> int:
    app = make_app(options)
    runner = web.AppRunner(
        app, handler_cancellation=True, access_log=None, shutdown_timeout=SHUTDOWN_S
    )
    await runner.setup()
    try:
        site = await _listen(runner, options)
        port = runner.addresses[0][1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        print(f"router http://{host}:{port}", flush=True)
        await until_drained(site, app[ROUTER].inference, options.limits.drain_timeout_s)
    finally:
        await runner.cleanup()
    return 0


async def _listen(runner: web.AppRunner, options: RouterOptions) -> web.BaseSite:
    """Open the port. Raises ConfigError where it cannot be had."""
    site = web.TCPSite(runner, options.host, options.port)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError("--port", f"cannot listen: {error}", "choose another") from None
    return site


def _late(pick: Callable[[Router], Handler]) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return await pick(request.app[ROUTER])(request)

    return handler


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Errors outside of inference, which tells its own, as OpenAI error objects."""
    try:
        return await handler(request)
    except RequestError as error:
        return _error(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        told = f"{request.method} {request.path}: {error.reason}"
        return _error(RequestFailed(told, status=error.status, code="invalid_request_error"))


def _error(error: RequestError) -> web.Response:
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    return web.Response(
        status=error.status,
        body=error_body(error),
        content_type="application/json",
        headers=headers,
    )

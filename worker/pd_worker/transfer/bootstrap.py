"""The BootstrapServer: the HTTP phone book of one prefill instance. It never touches data.

    PUT    /route                         a rank registers or renews its lease (body: Route)
    DELETE /route?incarnation=…           a process takes its ranks out
    GET    /route?prefill_dp_rank=&prefill_cp_rank=&target_tp_rank=&target_pp_rank=
                                          that rank's RankAddress; all -1: PrefillServerInfo
    GET    /health                        200

503 until all ranks are there. With a secret every /route needs the bearer token. Runs in prefill's
API process on a port of its own, or on any event loop.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from pd_worker.transfer.args import Route
from pd_worker.transfer.keys import bootstrap_token
from pd_worker.transfer.registry import Registry, RouteRefused

MAX_BODY_NBYTES = 16 << 10
RANK_PARAMS = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
SENTINEL = (-1, -1, -1, -1)

_decoder = msgspec.json.Decoder(Route)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _error(status: int, message: str, field: str | None = None) -> web.Response:
    return web.json_response({"error": {"field": field, "message": message}}, status=status)


def _json(value: msgspec.Struct) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _field_of(error: msgspec.ValidationError) -> str | None:
    found = re.search(r"`\$\.(\w+)|field `(\w+)`", str(error))
    return None if found is None else found.group(1) or found.group(2)


def make_app(secret: str = "") -> web.Application:
    """The application to run on the bootstrap port."""
    return BootstrapServer(secret).app()


class BootstrapServer:
    """State and handlers; `app` makes the aiohttp application to run."""

    def __init__(self, secret: str = "") -> None:
        self.registry = Registry()
        self._write_token = bootstrap_token(secret, "write")
        self._tokens = {"GET": [bootstrap_token(secret, "read"), self._write_token]}

    def app(self) -> web.Application:
        """A new application that serves this server's table."""
        app = web.Application(client_max_size=MAX_BODY_NBYTES, middlewares=[self._authorise])
        app.router.add_put("/route", self._put)
        app.router.add_get("/route", self._get)
        app.router.add_delete("/route", self._delete)
        app.router.add_get("/health", self._health)
        return app

    @web.middleware
    async def _authorise(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self._write_token and request.path != "/health":
            scheme, _, token = request.headers.get("Authorization", "").partition(" ")
            if scheme != "Bearer" or not token:
                return _error(401, "a bearer token is needed")
            accepted = self._tokens.get(request.method, [self._write_token])
            if not any(hmac.compare_digest(token.encode(), good.encode()) for good in accepted):
                return _error(403, "the token is wrong")
        return await handler(request)

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(text="OK")

    async def _put(self, request: web.Request) -> web.Response:
        try:
            route = _decoder.decode(await request.read())
            self.registry.put(route, time.monotonic(), trusted=bool(self._write_token))
        except msgspec.ValidationError as error:
            return _error(400, str(error), _field_of(error))
        except msgspec.DecodeError as error:
            return _error(400, f"the body is not JSON: {error}")
        except RouteRefused as error:
            return _error(error.status, error.message, error.field)
        return web.json_response({"lease_ttl_s": route.lease_ttl_s})

    async def _delete(self, request: web.Request) -> web.Response:
        incarnation = request.query.get("incarnation", "")
        if not incarnation:
            return _error(400, "incarnation is missing", "incarnation")
        return web.json_response({"removed": self.registry.delete(incarnation)})

    async def _get(self, request: web.Request) -> web.Response:
        ranks: list[int] = []
        for name in RANK_PARAMS:
            try:
                ranks.append(int(request.query[name]))
            except (KeyError, ValueError):
                return _error(400, f"{name} must be an integer", name)
        info = self.registry.info(time.monotonic())
        if info is None:
            return _error(503, "not all prefill ranks are registered")
        if tuple(ranks) == SENTINEL:
            return _json(msgspec.structs.replace(info, has_secret=bool(self._write_token)))
        address = self.registry.address((ranks[0], ranks[1], ranks[2], ranks[3]))
        return _error(404, "there is no such rank") if address is None else _json(address)

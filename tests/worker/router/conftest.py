"""A router in front of scripted workers: real servers on real ports, in the test's own loop."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from pd_worker.router.app import ROUTER, make_app
from pd_worker.router.options import HealthOptions, LimitOptions, RouterOptions
from pd_worker.router.parts import Router

Script = Callable[["Stub", web.Request], Awaitable[web.StreamResponse]]


async def until(condition: Callable[[], Any], within_s: float = 3.0) -> float:
    """Poll until `condition` is true; how long it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < within_s, "the condition did not come true in time"
        await asyncio.sleep(0.005)
    return time.monotonic() - start


def chunk(text: str, **extra: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**body, "choices": [choice], **extra}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def open_stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def serve_normally(stub: Stub, request: web.Request) -> web.StreamResponse:
    """Prefill answers with one token, decode with three once prefill has served the same room."""
    words = ["a"] if stub.role == "prefill" else ["a", "b", "c"]
    if not stub.calls[-1].body.get("stream"):
        message = {"role": "assistant", "content": "".join(words)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        await stub.meet()
        return web.json_response(
            {
                "id": "c",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [choice],
            }
        )
    response = await open_stream(request)
    await stub.meet()
    for word in words:
        await response.write(chunk(word))
    await response.write(DONE)
    return response


@dataclasses.dataclass
class Seen:
    """A request that a stub got."""

    body: dict[str, Any]
    headers: dict[str, str]


class Stub:
    """A scripted worker. `running` and `cancelled` are what its handlers saw."""

    def __init__(self, role: str, **facts: Any) -> None:
        self.role, self.script = role, serve_normally
        self.facts = {"role": role, "pairing_key": "k", "served_model_name": "m", **facts}
        if role == "prefill":
            self.facts.setdefault("bootstrap_port", 8998)
        self.ready: tuple[int, str] = (200, "{}")
        self.calls: list[Seen] = []
        self.other: list[str] = []
        self.running = self.cancelled = 0
        self.thawed = asyncio.Event()
        self.thawed.set()
        self.url = ""
        self.rooms: dict[str, asyncio.Event] = {}
        """Rooms whose KV has arrived; shared by all stubs of a router."""

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/ready", self._ready)
        app.router.add_get("/server_info", self._info)
        for path in ("/v1/chat/completions", "/v1/completions", "/generate"):
            app.router.add_post(path, self._generate)
        app.router.add_route("*", "/{other}", self._other)
        return app

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [call.body for call in self.calls]

    async def meet(self) -> None:
        """Prefill delivers its last request's KV, decode waits for it."""
        room = str(self.calls[-1].body.get("bootstrap_room"))
        arrived = self.rooms.setdefault(room, asyncio.Event())
        if self.role == "prefill":
            arrived.set()
        if self.role == "decode":
            await arrived.wait()

    async def _ready(self, request: web.Request) -> web.Response:
        await self.thawed.wait()
        status, text = self.ready
        return web.Response(status=status, text=text)

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response(self.facts)

    async def _other(self, request: web.Request) -> web.Response:
        self.other.append(f"{request.method} {request.path} {await request.text()}")
        return web.json_response({"by": self.url})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        self.running += 1
        try:
            self.calls.append(Seen(await request.json(), dict(request.headers)))
            return await self.script(self, request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[tuple[str, web.AppRunner]]:
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", runner
    finally:
        await runner.cleanup()


class Front:
    """A running router with its stubs; `session` talks to it as a client."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.prefill: list[Stub] = []
        self.decode: list[Stub] = []
        self.unified: list[Stub] = []
        self.runners: dict[str, web.AppRunner] = {}
        self.rooms: dict[str, asyncio.Event] = {}
        self.url = ""
        self.router: Router
        self.session: aiohttp.ClientSession

    @property
    def stubs(self) -> list[Stub]:
        return [*self.prefill, *self.decode, *self.unified]

    async def stub(self, stub: Stub) -> Stub:
        stub.url, runner = await self._stack.enter_async_context(served(stub.app()))
        self.runners[stub.url], stub.rooms = runner, self.rooms
        getattr(self, stub.role).append(stub)
        return stub

    async def stop(self, stub: Stub) -> None:
        """Nothing listens there any more."""
        await self.runners[stub.url].cleanup()

    async def start(self, options: RouterOptions) -> None:
        self.url, runner = await self._stack.enter_async_context(served(make_app(options)))
        self.router = runner.app[ROUTER]
        self.session = await self._stack.enter_async_context(aiohttp.ClientSession(self.url))
        await until(lambda: all(worker.state != "unknown" for worker in self.router.registry))

    async def ask(self, path: str = "/v1/chat/completions", **body: Any) -> Any:
        """Status, headers and JSON of a request without streaming."""
        body = body or {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        async with self.session.post(path, json=body) as response:
            return response.status, response.headers, json.loads(await response.read())

    @asynccontextmanager
    async def stream(self, **body: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, **body}
        async with self.session.post("/v1/chat/completions", json=body) as response:
            yield response

    async def idle(self, within_s: float = 1.0) -> None:
        """No worker works for anybody any more."""
        await until(lambda: not any(stub.running for stub in self.stubs), within_s)


@pytest.fixture
async def front() -> AsyncIterator[Callable[..., Awaitable[Front]]]:
    """Builds a router: `await front(prefill=2, decode=1, policy=…)`; counts or Stubs."""
    async with AsyncExitStack() as stack:

        async def build(
            prefill: Any = 1, decode: Any = 1, unified: Any = 0, **settings: Any
        ) -> Front:
            made = Front(stack)
            for role, wanted in (("prefill", prefill), ("decode", decode), ("unified", unified)):
                stubs = [Stub(role) for _ in range(wanted)] if isinstance(wanted, int) else wanted
                for stub in stubs:
                    await made.stub(stub)
            await made.start(options_for(made, **settings))
            return made

        yield build


def options_for(made: Front, **settings: Any) -> RouterOptions:
    def part(cls: Any, **defaults: Any) -> Any:
        names = {field.name for field in dataclasses.fields(cls)}
        mine = {name: settings.pop(name) for name in list(settings) if name in names}
        return cls(**{**defaults, **mine})

    health = part(HealthOptions, health_interval_s=30.0)
    limits = part(LimitOptions)
    urls = {
        "prefill": [stub.url for stub in made.prefill],
        "decode": [stub.url for stub in made.decode],
        "worker": [stub.url for stub in made.unified],
    }
    lists: dict[str, Any] = {flag: (tuple(found),) for flag, found in urls.items()}
    return RouterOptions(**{**lists, "health": health, "limits": limits, **settings})

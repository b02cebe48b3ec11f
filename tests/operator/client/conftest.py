"""A server that answers requests by a script, and a real client before it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio import client

from pd_operator.cluster import Cluster

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


def meta(name: str, version: int, **more: Any) -> dict[str, Any]:
    labels = {"pdserve.io/deployment": "m", "app.kubernetes.io/managed-by": "pdserve"}
    return {
        "name": name,
        "namespace": "llm",
        "uid": f"uid-{name}",
        "resourceVersion": str(version),
        "labels": labels,
        **more,
    }


def service(name: str, version: int = 1) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta(name, version), "spec": {}}


def page(*items: dict[str, Any], version: int = 1, more: str = "") -> web.Response:
    metadata = {"resourceVersion": str(version), "continue": more}
    return web.json_response({"items": list(items), "metadata": metadata})


def status(code: int, message: str = "no", **headers: str) -> web.Response:
    body = {"kind": "Status", "code": code, "message": message}
    return web.json_response(body, status=code, headers=headers)


@dataclass
class Script:
    """Answers in the order in which they were added; the last one again and again."""

    replies: list[Reply | web.Response | dict[str, Any]] = field(default_factory=list)
    seen: list[tuple[str, str, dict[str, str], str]] = field(default_factory=list)
    """Method, path, query and body of each request."""
    events: asyncio.Queue[dict[str, Any] | None] = field(default_factory=asyncio.Queue)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.text()
        self.seen.append((request.method, request.path, dict(request.query), body))
        if "watch" in request.query:
            return await self._watch(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, dict):
            return web.json_response(reply)
        if isinstance(reply, web.Response):
            copy = web.Response(status=reply.status, body=reply.body, headers=reply.headers)
            return copy
        return await reply(request)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while event := await self.events.get():
            await response.write(json.dumps(event).encode() + b"\n")
        return response

    def tell(self, kind: str, value: dict[str, Any]) -> None:
        self.events.put_nowait({"type": kind, "object": value})

    def end_watch(self) -> None:
        self.events.put_nowait(None)


@pytest.fixture
async def script() -> Script:
    return Script()


@pytest.fixture
async def cluster(script: Script) -> AsyncIterator[Cluster]:
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", script.handle)
    async with TestServer(app) as server:
        configuration = client.Configuration(host=str(server.make_url("")).rstrip("/"))
        connected = Cluster(client.ApiClient(configuration))
        yield connected
        await connected.close()


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Reset the connection instead of answering."""
    assert request.transport is not None
    request.transport.abort()
    await asyncio.sleep(0)
    return web.Response()

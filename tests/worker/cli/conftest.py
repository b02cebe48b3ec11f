"""A server with an OpenAI API whose answers are known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

WORDS = ["The", " cache", " saves", " work", "."]


@dataclass
class StubServer:
    """Streams WORDS over and over; keeps what it was asked."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    left: int = 0
    """Answers whose client went away."""
    status: int = 200
    break_after: int = 10**9
    """Pieces after which an answer ends without [DONE]."""
    hold_after: int = 10**9
    """Pieces after which an answer waits until its client leaves."""
    gap_s: float = 0.0

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "stub"}]})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        if self.status != 200:
            return web.json_response({"error": {"message": "no"}}, status=self.status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            await self._write(response, body)
        except (ConnectionError, asyncio.CancelledError):
            self.left += 1
            raise
        return response

    async def _write(self, response: web.StreamResponse, body: dict[str, Any]) -> None:
        for index in range(body["max_tokens"]):
            if index == self.break_after:
                return
            word = WORDS[index % len(WORDS)]
            choice = {"index": 0, "text": word, "delta": {"content": word}}
            event = {"choices": [choice], "usage": {"completion_tokens": index + 1}}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            if index + 1 == self.hold_after:
                await asyncio.Event().wait()
            await asyncio.sleep(self.gap_s)
        await response.write(b": keep-alive\n\ndata: [DONE]\n\n")


@pytest.fixture
async def stub() -> AsyncIterator[StubServer]:
    stub = StubServer()
    app = web.Application(client_max_size=2**26)
    app.router.add_get("/v1/models", stub.models)
    app.router.add_post("/v1/completions", stub.answer)
    app.router.add_post("/v1/chat/completions", stub.answer)
    async with TestServer(app, handler_cancellation=True) as server:
        stub.url = str(server.make_url("")).rstrip("/")
        yield stub

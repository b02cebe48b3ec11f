"""The router as its users meet it: the command, signals, and the official client."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import openai
import pytest
from aiohttp import web

from pd_worker.errors import ConfigError
from pd_worker.router.app import run
from pd_worker.router.options import HealthOptions, LimitOptions, RouterOptions
from tests.worker.router.conftest import (
    DONE,
    Stub,
    chunk,
    open_stream,
    serve_normally,
    served,
    until,
)


@asynccontextmanager
async def router_process(*args: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """`pdserve router` on a free port, and its URL."""
    command = [sys.executable, "-m", "pd_worker.cli", "router", "--port", "0", *args]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        yield process, line.split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Stub, Stub]]:
    prefill, decode = Stub("prefill"), Stub("decode")
    decode.rooms = prefill.rooms
    async with served(prefill.app()) as (prefill.url, _), served(decode.app()) as (decode.url, _):
        yield prefill, decode


async def ready(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(10):
        while True:
            async with session.get(f"{url}/ready") as response:
                if response.status == 200:
                    return


async def refused(url: str) -> bool:
    """Nobody takes a new connection."""
    port = int(url.rpartition(":")[2])
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except (ConnectionRefusedError, ConnectionResetError):  # reset: it was in the closed queue
        return True
    writer.close()
    return False


async def test_sigterm_takes_no_new_connections_and_serves_the_open_ones_to_their_end():
    gate = asyncio.Event()

    async def slow(stub: Stub, request: web.Request) -> web.StreamResponse:
        response = await open_stream(request)
        await response.write(chunk("a"))
        await gate.wait()
        await response.write(chunk("b") + DONE)
        return response

    async with pair() as (prefill, decode):
        decode.script = slow
        args = ("--prefill", f"{prefill.url},9", "--decode", decode.url)
        async with router_process(*args) as (process, url), aiohttp.ClientSession(url) as session:
            await ready(url)
            body = {"messages": [], "stream": True}
            async with session.post("/v1/chat/completions", json=body) as response:
                assert await response.content.readuntil(b"\n\n") == chunk("a")
                async with session.get("/ready") as found:
                    await found.read()  # leaves a connection to be used again
                process.send_signal(signal.SIGTERM)
                while not await refused(url):
                    pass
                decode.script = serve_normally
                async with session.post("/v1/chat/completions", json=body) as late:
                    assert (late.status, late.headers["Connection"]) == (200, "close")
                    assert (await late.read()).endswith(DONE)
                gate.set()
                assert await response.read() == chunk("b") + DONE
            assert await asyncio.wait_for(process.wait(), 5) == 0
    assert decode.bodies[0]["bootstrap_port"] == 9


async def test_a_second_sigterm_ends_at_once():
    async def forever(stub: Stub, request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with pair() as (prefill, decode):
        decode.script = forever
        args = ("--prefill", prefill.url, "--decode", decode.url)
        async with router_process(*args) as (process, url), aiohttp.ClientSession(url) as session:
            await ready(url)
            asked = asyncio.create_task(session.post("/generate", json={"text": "a"}))
            await until(lambda: decode.running)
            process.send_signal(signal.SIGTERM)
            while not await refused(url):
                pass
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 5) == 0
            assert time.monotonic() - start < 3
            with pytest.raises(aiohttp.ClientError):
                await asked
            await until(lambda: not decode.running)


async def test_the_flags_take_several_workers_each():
    async with pair() as (prefill, decode):
        args = ("--decode", decode.url, "--prefill", "http://127.0.0.1:1", prefill.url)
        async with router_process(*args, "--prefill", "http://127.0.0.1:2,3") as (_, url):
            await ready(url)
            async with aiohttp.ClientSession() as session, session.get(f"{url}/workers") as answer:
                listed = (await answer.json())["workers"]
    assert len(listed) == 4


async def test_the_official_client_streams_through_the_router(front):
    f = await front()
    async with openai.AsyncOpenAI(base_url=f"{f.url}/v1", api_key="k", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["m"]
        messages = [{"role": "user", "content": "hi"}]
        whole = await client.chat.completions.create(model="m", messages=messages)
        assert whole.choices[0].message.content == "abc"
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        assert [part.choices[0].delta.content async for part in stream] == ["a", "b", "c"]


async def test_the_official_client_sees_an_error_in_mid_stream(front):
    f = await front()

    async def breaks(stub: Stub, request: web.Request) -> web.StreamResponse:
        response = await open_stream(request)
        await response.write(chunk("a"))
        await asyncio.sleep(0.02)
        assert request.transport is not None
        request.transport.abort()
        return response

    f.decode[0].script = breaks
    async with openai.AsyncOpenAI(base_url=f"{f.url}/v1", api_key="k", max_retries=0) as client:
        messages = [{"role": "user", "content": "hi"}]
        stream = await client.chat.completions.create(model="m", messages=messages, stream=True)
        with pytest.raises(openai.APIError, match="closed the connection"):
            async for _ in stream:
                pass


async def test_the_official_client_gets_the_workers_own_error(front):
    f = await front()

    async def refuses(stub: Stub, request: web.Request) -> web.StreamResponse:
        error = {"message": "too long", "type": "t", "param": "messages", "code": "c"}
        return web.json_response({"error": error}, status=400)

    f.prefill[0].script, f.decode[0].script = refuses, serve_normally
    async with openai.AsyncOpenAI(base_url=f"{f.url}/v1", api_key="k", max_retries=0) as client:
        with pytest.raises(openai.BadRequestError, match="too long") as caught:
            await client.chat.completions.create(model="m", messages=[], stream=True)
    assert caught.value.param == "messages"


def test_a_port_that_is_taken_is_a_config_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="--port"):
            run(RouterOptions(port=port))


@pytest.mark.parametrize(
    "make",
    [
        lambda: RouterOptions(port=70000),
        lambda: LimitOptions(max_attempts=0),
        lambda: LimitOptions(max_queued=-1),
        lambda: HealthOptions(health_interval_s=0),
        lambda: HealthOptions(breaker_failures=0),
    ],
)
def test_wrong_options_are_named(make):
    with pytest.raises(ConfigError, match="--"):
        make()

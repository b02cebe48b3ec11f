"""Requests that end early: by their client, or because one of the two workers refuses them."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from urllib.parse import quote

import pytest

from tests.chaos.client import (
    both,
    generate,
    load,
    post,
    routed,
    settled,
    stretched,
    tokens,
    until,
)
from tests.chaos.conftest import DECODE_POOL, SMALL_PREFILL_POOL
from tests.chaos.parts import HOST

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def leave(part, body, after_s: float) -> None:
    """Send a request and close the connection `after_s` later."""
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    _, writer = await asyncio.open_connection(HOST, part.port)
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    await writer.drain()
    await asyncio.sleep(after_s)
    writer.close()
    await writer.wait_closed()


async def test_a_client_that_leaves_takes_its_request_along(fleet, session):
    async def nothing_runs() -> bool:
        return sum([await load(session, part) for part in fleet.workers]) == 0

    for number in range(50):
        body = {"model": "tiny", "prompt": tokens(1800), "max_tokens": 50, "stream": True}
        await leave(fleet.router, body, after_s=(0.0, 0.05, 0.2)[number % 3])
        await until(nothing_runs, 1.0, f"both legs are idle after client {number} left")
    await settled(session, fleet.workers, 1)
    short = await post(session, fleet.router, generate(tokens(20), 2))
    assert short.status == 200
    assert short.seconds < stretched(1)


async def test_prefill_lets_go_of_a_request_that_decode_refuses(fleet, session):
    too_long = generate(tokens(DECODE_POOL + 500), 2)
    prefill, decode = await both(session, fleet.prefill, fleet.decode, too_long)
    await settled(session, fleet.workers, 2)
    assert decode.status == 400
    assert str(DECODE_POOL) in decode.message
    assert prefill.status >= 500
    assert decode.message in prefill.message
    assert prefill.seconds < stretched(2)


async def test_decode_lets_go_of_a_request_that_prefill_refuses(fleet, session):
    too_long = generate(tokens(SMALL_PREFILL_POOL + 500), 2)
    prefill, decode = await both(session, fleet.other, fleet.decode, too_long)
    await settled(session, fleet.workers, 2)
    assert prefill.status == 400
    assert decode.status >= 500
    assert prefill.message in decode.message
    assert decode.seconds < stretched(2)


@asynccontextmanager
async def only(fleet, session, head):
    """The router knows no other prefill worker."""
    url = f"{fleet.router.url}/workers"
    rest = [part for part in (fleet.prefill, fleet.other) if part is not head]
    for part in rest:
        async with session.delete(f"{url}?url={quote(part.url)}") as response:
            assert response.status == 200
    yield
    for part in rest:
        async with session.post(url, json={"url": part.url, "role": "prefill"}) as response:
            assert response.status == 202
    await routed(session, fleet.router)


@pytest.mark.parametrize(
    ("head", "length"),
    [("prefill", DECODE_POOL + 500), ("other", SMALL_PREFILL_POOL + 500)],
    ids=["decode refuses", "prefill refuses"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_client_is_told_what_one_worker_refused(fleet, session, head, length, stream):
    async with only(fleet, session, getattr(fleet, head)):
        end = await post(session, fleet.router, generate(tokens(length), 2) | {"stream": stream})
    assert end.status == 400
    assert end.body["error"]["type"] == "invalid_request_error"
    assert end.seconds < stretched(2)
    await settled(session, fleet.workers, 2)

"""SIGTERM: no new requests, running ones finish, then the process ends; the second one is final."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from tests.chaos.client import (
    Stream,
    generate,
    load,
    pd_fields,
    post,
    settled,
    status,
    stretched,
    tokens,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DRAIN_S = 20.0


async def not_ready(session, part) -> None:
    """Wait until /ready is 503, which must not take a second."""

    async def is_not_ready() -> bool:
        return await status(session, part, "/ready") == 503

    await until(is_not_ready, 1.0, f"/ready of {part.name} is 503")


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_what_runs_on_a_worker_is_finished_before_it_ends(fleet, session, role):
    part = getattr(fleet, role)
    streams = [
        asyncio.create_task(
            Stream().follow(session, fleet.router, {"prompt": tokens(900), "max_tokens": 100})
        )
        for _ in range(10)
    ]

    async def all_started() -> bool:
        return await load(session, fleet.decode) == 10 and await load(session, part) > 0

    await until(all_started, 20, "the worker has requests")
    part.signal(signal.SIGTERM)
    began = time.monotonic()
    await not_ready(session, part)
    refused = await post(session, part, generate(tokens(9), 2) | pd_fields(fleet.prefill))
    assert refused.status == 503
    assert int(refused.headers["Retry-After"]) > 0
    ends = await asyncio.gather(*streams)
    assert [(end.error, end.finish, end.done) for end in ends] == [(None, "length", 1)] * 10
    code = await asyncio.to_thread(part.wait, stretched(DRAIN_S))
    assert code == 0
    assert time.monotonic() - began < stretched(DRAIN_S)
    await settled(session, [each for each in fleet.workers if each is not part], 2)


async def test_a_second_sigterm_ends_a_worker_at_once(fleet, session):
    stream = Stream()
    body = {"prompt": tokens(20), "max_tokens": 3500}
    running = asyncio.create_task(stream.follow(session, fleet.router, body))

    async def streams() -> bool:
        return len(stream.events) > 5

    await until(streams, 20, "the stream has begun")
    fleet.decode.signal(signal.SIGTERM)
    await not_ready(session, fleet.decode)
    assert not running.done()
    fleet.decode.signal(signal.SIGTERM)
    await asyncio.to_thread(fleet.decode.wait, stretched(2))
    await running
    assert stream.error
    assert (stream.finish, stream.done) == (None, 1)
    await settled(session, [fleet.prefill, fleet.other], 2)

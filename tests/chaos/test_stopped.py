"""A worker that hangs (SIGSTOP) holds up its own requests and nobody else's."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from tests.chaos.client import (
    Stream,
    both,
    generate,
    pd_fields,
    post,
    settled,
    status,
    stretched,
    tokens,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STALL_S = 1.0
"""Far above a step on a busy machine, below any time limit of a connection."""


async def stream_through(session, prefill, decode) -> Stream:
    """100 tokens from decode with prefill as its other leg."""
    body = {"prompt": tokens(20), "max_tokens": 100, **pd_fields(prefill)}
    first = {**body, "temperature": 0, "ignore_eos": True, "model": "tiny"}
    other = asyncio.create_task(post(session, prefill, first, "/v1/completions"))
    stream = await Stream().follow(session, decode, body)
    assert (await other).status == 200
    return stream


async def test_decode_works_on_while_a_prefill_hangs(fleet, session):
    usual = await stream_through(session, fleet.other, fleet.decode)
    fleet.prefill.signal_all(signal.SIGSTOP)
    try:
        flood = [
            asyncio.create_task(both(session, fleet.prefill, fleet.decode, generate(tokens(9), 2)))
            for _ in range(50)
        ]
        stream = await stream_through(session, fleet.other, fleet.decode)
        assert await status(session, fleet.decode, "/health") == 200
    finally:
        fleet.prefill.signal_all(signal.SIGCONT)
    assert (stream.finish, stream.done) == ("length", 1)
    assert stream.longest_gap_s < max(stretched(STALL_S), 3 * usual.longest_gap_s)
    ends = await asyncio.gather(*flood)
    assert {leg.status for legs in ends for leg in legs} == {200}
    await settled(session, fleet.workers, 5)


async def test_the_router_serves_all_while_a_prefill_hangs(fleet, session):
    fleet.prefill.signal_all(signal.SIGSTOP)
    began = time.monotonic()
    try:
        requests = [post(session, fleet.router, generate(tokens(30), 3)) for _ in range(12)]
        ends = await asyncio.gather(*requests)
    finally:
        fleet.prefill.signal_all(signal.SIGCONT)
    assert [end.status for end in ends] == [200] * 12
    assert time.monotonic() - began < stretched(15)
    await settled(session, fleet.workers, 5)

"""kill -9: whoever is left tells the clients, lets go of everything, and works on with the next."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.chaos.client import (
    Stream,
    both,
    gauges,
    generate,
    post,
    ready,
    repeated,
    settled,
    status,
    stretched,
    tokens,
    until,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOLD_S = 10.0
"""From a death to the end of what ran with the dead."""
RECOVERY_S = 15.0
LONG = 1800
VICTIMS = pytest.mark.parametrize("victim", ["worker", "scheduler"])


async def red(session, part) -> None:
    """Wait until its /health is not 200."""

    async def is_red() -> bool:
        return await status(session, part, "/health") != 200

    await until(is_red, TOLD_S, f"/health of {part.name} is red")


async def moving(session, part, gauge: str) -> None:
    """Wait until requests are in that state."""

    async def is_moving() -> bool:
        return (await gauges(session, part))[gauge] > 0

    await until(is_moving, 20, f"{gauge} of {part.name}")


@VICTIMS
async def test_decode_goes_on_with_a_prefill_that_was_killed_and_restarted(fleet, session, victim):
    async def health() -> int:
        return await status(session, fleet.decode, "/health")

    async def elsewhere() -> tuple[int, int]:
        legs = await both(session, fleet.other, fleet.decode, generate(tokens(20), 3))
        return legs[0].status, legs[1].status

    async with repeated(health) as healths, repeated(elsewhere) as others:
        burst = [
            asyncio.create_task(
                both(session, fleet.prefill, fleet.decode, generate(tokens(LONG), 3))
            )
            for _ in range(8)
        ]
        await moving(session, fleet.decode, "num_decode_transfer_queue_reqs")
        fleet.prefill.kill(victim)
        killed = time.monotonic()
        await red(session, fleet.prefill)
        ends = await asyncio.gather(*burst)
        assert time.monotonic() - killed < stretched(TOLD_S)
        assert any(decode.status >= 500 for _, decode in ends)
        assert await asyncio.to_thread(fleet.prefill.wait, stretched(10)) != 0
        fleet.prefill.start()
        await ready(session, [fleet.prefill])

        async def works() -> bool:
            legs = await both(session, fleet.prefill, fleet.decode, generate(tokens(20), 3))
            return [leg.status for leg in legs] == [200, 200]

        await until(works, RECOVERY_S, "decode works with the new prefill")
    assert healths
    assert set(healths) == {200}
    assert others
    assert set(others) == {(200, 200)}
    await settled(session, fleet.workers, 5)


@VICTIMS
async def test_clients_and_prefill_hear_at_once_of_a_decode_that_was_killed(fleet, session, victim):
    stream = Stream()
    running = asyncio.create_task(
        stream.follow(session, fleet.router, {"prompt": tokens(20), "max_tokens": 3000})
    )

    async def streams() -> bool:
        return len(stream.events) > 5

    await until(streams, 20, "the stream has begun")
    burst = [
        asyncio.create_task(post(session, fleet.router, generate(tokens(900), 3)))
        for _ in range(16)
    ]
    await moving(session, fleet.decode, "num_decode_transfer_queue_reqs")
    fleet.decode.kill(victim)
    killed = time.monotonic()
    await running
    assert time.monotonic() - killed < stretched(3)
    assert stream.error
    assert (stream.finish, stream.done, stream.broken) == (None, 1, "")
    await red(session, fleet.decode)
    ends = await asyncio.gather(*burst)
    assert time.monotonic() - killed < stretched(TOLD_S)
    assert any(end.status >= 500 for end in ends)
    assert {end.status for end in ends} <= {200, 500, 502, 503}
    await settled(session, [fleet.prefill, fleet.other], 2)
    assert await asyncio.to_thread(fleet.decode.wait, stretched(10)) != 0
    fleet.decode.start()
    await ready(session, [fleet.decode])
    legs = await both(session, fleet.prefill, fleet.decode, generate(tokens(20), 3))
    assert [leg.status for leg in legs] == [200, 200]

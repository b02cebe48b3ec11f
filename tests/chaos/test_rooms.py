"""Whatever a caller writes into the bootstrap fields, it spoils nobody's request but its own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.chaos.client import both, fetch, generate, pd_fields, post, settled, status, tokens

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FORGED: list[dict[str, Any]] = [
    *({"bootstrap_room": room} for room in (0, -1, -(2**63), 2**63, 2**64, 10**40, 1.5)),
    *({"bootstrap_room": room} for room in ("", "abc", "-1", "1e3", [], [1, 1], {}, None)),
    *({"bootstrap_port": port} for port in (0, -1, 65536, 2**64, "x")),
    *({"bootstrap_host": host} for host in ("", " ", "a b", "x" * 300, 7, ["127.0.0.1"] * 3)),
]


async def incarnations(session, fleet) -> list[str]:
    """Of all workers: equal before and after means that no scheduler was restarted."""
    infos = [await fetch(session, part, "/server_info") for part in fleet.workers]
    return [info["incarnation"] for info in infos]


async def unharmed(session, fleet, before: list[str]) -> None:
    """All workers live, hold nothing, and work."""
    await settled(session, fleet.workers, 2)
    assert [await status(session, part, "/health") for part in fleet.workers] == [200] * 3
    assert await incarnations(session, fleet) == before
    legs = await both(session, fleet.prefill, fleet.decode, generate(tokens(20), 3))
    assert [leg.status for leg in legs] == [200, 200]


async def test_forged_fields_are_refused(fleet, session):
    before = await incarnations(session, fleet)
    for forged in FORGED:
        for part in (fleet.prefill, fleet.decode):
            body = generate(tokens(9), 2) | pd_fields(fleet.prefill) | forged
            end = await post(session, part, body)
            assert 400 <= end.status < 500, (part.name, forged, end)
    await unharmed(session, fleet, before)


async def test_a_room_serves_one_request_at_a_time_and_never_again(fleet, session):
    before = await incarnations(session, fleet)
    fields = pd_fields(fleet.prefill)
    body = generate(tokens(600), 40) | fields
    first = [
        asyncio.create_task(post(session, part, body)) for part in (fleet.prefill, fleet.decode)
    ]
    thieves = generate(tokens(9), 2) | fields
    parts = [fleet.prefill, fleet.decode] * 25
    stolen = await asyncio.gather(*(post(session, part, thieves) for part in parts))
    ends = await asyncio.gather(*first)
    late = [await post(session, part, thieves) for part in (fleet.prefill, fleet.decode)]
    assert [end.status for end in ends] == [200, 200]
    assert ends[1].body["meta_info"]["completion_tokens"] == 40
    assert {end.status for end in [*stolen, *late]} == {400}
    await unharmed(session, fleet, before)


async def test_the_router_takes_no_such_fields_from_clients(fleet, session):
    for name, value in pd_fields(fleet.prefill).items():
        end = await post(session, fleet.router, generate(tokens(9), 2) | {name: value})
        assert end.status == 400
        assert name in end.message

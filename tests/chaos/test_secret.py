"""With one secret on all parts everything works; without it nobody gets in."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.chaos.client import generate, pd_fields, post, ready, routed, settled, status, tokens
from tests.chaos.conftest import Fleet
from tests.chaos.parts import HOST, router, worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SECRET = "of the deployment alone"


@pytest.fixture(scope="module")
def closed(chaos_model, all_workers, tmp_path_factory) -> Iterator[Fleet]:
    """A pair and a router that share a secret; `other` is a decode worker without it."""
    folder = tmp_path_factory.mktemp("closed")
    pool = ("--max-total-tokens", "4096")
    prefill = worker("prefill", chaos_model, folder, *pool, PDSERVE_SECRET=SECRET)
    decode = worker("decode", chaos_model, folder, *pool, PDSERVE_SECRET=SECRET)
    front = router([prefill], [decode], folder, PDSERVE_SECRET=SECRET)
    parts = (prefill, decode, front)
    for part in parts:
        part.start()
    yield Fleet(prefill=prefill, decode=decode, router=front, other=all_workers.decode)
    for part in parts:
        part.end()


@pytest.fixture
async def ready_pair(closed, session) -> Fleet:
    await ready(session, [closed.prefill, closed.decode, closed.router])
    await routed(session, closed.router)
    return closed


async def test_a_pair_with_a_secret_answers_like_one_without(fleet, ready_pair, session):
    body = generate(tokens(500, seed=3), 20)
    ends = [await post(session, front, body) for front in (fleet.router, ready_pair.router)]
    assert [end.status for end in ends] == [200, 200]
    assert ends[0].body["output_ids"] == ends[1].body["output_ids"]
    await settled(session, [ready_pair.prefill, ready_pair.decode], 2)


@pytest.mark.parametrize("knows", ["prefill", "decode"])
async def test_a_worker_without_the_secret_cannot_pair(fleet, ready_pair, session, knows):
    """The request ends on the worker that sees the difference; a router then closes both legs."""
    closed = ready_pair
    prefill, decode = (
        (closed.prefill, fleet.decode) if knows == "prefill" else (fleet.prefill, closed.decode)
    )
    body = generate(tokens(20), 3) | pd_fields(prefill)
    other_leg = asyncio.create_task(post(session, prefill, body))
    end = await post(session, decode, body)
    assert end.status >= 500
    assert "secret" in end.message
    assert end.seconds < 10
    assert not other_leg.done()
    other_leg.cancel()
    await asyncio.gather(other_leg, return_exceptions=True)
    await settled(session, [prefill, decode], 2)
    assert await status(session, prefill, "/health") == 200
    assert await status(session, decode, "/health") == 200


@pytest.mark.parametrize("token", ["", "Bearer guessed"])
async def test_its_registry_and_its_list_of_workers_are_closed(ready_pair, session, token):
    headers = {"Authorization": token} if token else {}
    registry = f"http://{HOST}:{ready_pair.prefill.bootstrap_port}/route"
    async with session.get(registry, headers=headers) as response:
        assert response.status in (401, 403)
    async with session.put(registry, headers=headers, json={}) as response:
        assert response.status in (401, 403)
    body = {"url": ready_pair.other.url, "role": "decode"}
    url = f"{ready_pair.router.url}/workers"
    async with session.post(url, json=body, headers=headers) as response:
        assert response.status == 403

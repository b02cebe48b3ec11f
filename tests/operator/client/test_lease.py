"""Leader election between replicas, on a server that keeps one Lease."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from pd_operator import lease as lease_module
from pd_operator.cluster import Cluster
from pd_operator.lease import Election
from tests.operator.client.conftest import Script, status

Start = Callable[[str], tuple[Election, asyncio.Event, asyncio.Task[None]]]


class Keeper:
    """The Lease, with versions as the API server keeps them."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.down = False
        self.slow_s = 0.0
        """An answer takes so long; what is asked for is done at once."""
        self.written_at = 0.0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if self.down:
            return status(503)
        answer = self.answer(request.method, await request.text())
        await asyncio.sleep(self.slow_s)
        return answer

    def answer(self, method: str, text: str) -> web.Response:
        if method == "GET":
            return web.json_response(self.lease) if self.lease else status(404)
        body = json.loads(text)
        if method == "POST":
            if self.lease:
                return status(409)
            body["metadata"]["resourceVersion"] = "1"
        else:
            assert self.lease is not None
            version = self.lease["metadata"]["resourceVersion"]
            if body["metadata"]["resourceVersion"] != version:
                return status(409)
            body["metadata"]["resourceVersion"] = str(int(version) + 1)
        self.lease, self.written_at = body, time.monotonic()
        return web.json_response(body)

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease else ""


@pytest.fixture
def keeper(script: Script) -> Keeper:
    made = Keeper()
    script.replies = [made]
    return made


@pytest.fixture
async def start(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Start]:
    monkeypatch.setattr(lease_module, "RETRY_S", 0.02)
    monkeypatch.setattr(lease_module, "RENEW_WITHIN_S", 0.3)
    monkeypatch.setattr(lease_module, "DURATION_S", 1)
    tasks = []

    def run(identity: str) -> tuple[Election, asyncio.Event, asyncio.Task[None]]:
        election = Election(cluster, "system", "pdserve", identity)
        acting = asyncio.Event()

        async def act() -> None:
            acting.set()
            try:
                await asyncio.Event().wait()
            finally:
                acting.clear()

        tasks.append(asyncio.create_task(election.run(act)))
        return election, acting, tasks[-1]

    yield run
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_one_of_two_acts(keeper: Keeper, start: Start) -> None:
    first, acting, _ = start("a")
    await acting.wait()
    second, _, _ = start("b")
    renewed = keeper.lease
    await until(lambda: keeper.lease is not renewed)
    assert (first.leading, second.leading, keeper.holder) == (True, False, "a")


async def test_a_leader_that_stops_hands_over_at_once(keeper: Keeper, start: Start) -> None:
    _, acting, task = start("a")
    await acting.wait()
    _, next_acting, _ = start("b")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not acting.is_set()
    async with asyncio.timeout(0.9):
        await next_acting.wait()
    assert keeper.holder == "b"
    assert keeper.lease is not None
    assert keeper.lease["spec"]["leaseTransitions"] == 3


async def test_a_leader_that_vanished_is_replaced_when_the_lease_runs_out(
    keeper: Keeper, start: Start
) -> None:
    keeper.lease = {
        "metadata": {"name": "pdserve", "namespace": "system", "resourceVersion": "5"},
        "spec": {"holderIdentity": "gone", "renewTime": "2099-01-01T00:00:00.000000Z",
                 "leaseDurationSeconds": 1},
    }  # fmt: skip
    _, acting, _ = start("b")
    began = asyncio.get_running_loop().time()
    await asyncio.wait_for(acting.wait(), 5)
    assert asyncio.get_running_loop().time() - began >= 1


async def test_a_lease_that_says_nothing_is_taken(keeper: Keeper, start: Start) -> None:
    keeper.lease = {"metadata": {"name": "pdserve", "namespace": "system", "resourceVersion": "5"}}
    _, acting, _ = start("b")
    async with asyncio.timeout(5):
        await acting.wait()
    assert keeper.holder == "b"


async def test_a_leader_without_the_api_server_stops_in_time_and_comes_back(
    keeper: Keeper, start: Start
) -> None:
    election, acting, _ = start("a")
    await acting.wait()
    keeper.down = True
    await until(lambda: not acting.is_set())
    assert not election.leading
    keeper.down = False
    await asyncio.wait_for(acting.wait(), 5)


@pytest.mark.parametrize("slow_s", [0.0, 0.05], ids=["prompt", "late answers"])
async def test_a_leader_stops_before_another_one_may_begin(
    keeper: Keeper, start: Start, monkeypatch: pytest.MonkeyPatch, slow_s: float
) -> None:
    monkeypatch.setattr(lease_module, "RETRY_S", 0.25)
    monkeypatch.setattr(lease_module, "RENEW_WITHIN_S", 0.6)
    keeper.slow_s = slow_s
    _, acting, _ = start("a")
    await acting.wait()
    renewed = keeper.lease
    await until(lambda: keeper.lease is not renewed)
    keeper.slow_s = 60.0  # from now on nothing is answered
    written_at = keeper.written_at
    await until(lambda: not acting.is_set())
    assert keeper.written_at == written_at
    assert time.monotonic() - written_at < lease_module.DURATION_S


async def test_what_the_work_raises_ends_the_election(cluster: Cluster, keeper: Keeper) -> None:
    async def fail() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await Election(cluster, "system", "pdserve", "a").run(fail)
    assert keeper.holder == ""

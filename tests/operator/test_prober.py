"""Workers' metrics, read over HTTP from servers that play workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pd_operator import metrics, transfers
from pd_operator import prober as prober_module
from pd_operator.objects.guards import network_policy
from pd_operator.observed import observe
from pd_operator.prober import Prober, Target, Targets, targets
from pd_operator.resource import Key
from tests.operator.builders import pod, populated, resource

KEY = Key("llm", "m")
PACKET_S = 0.005
"""From one packet to the next."""


class Worker:
    """/metrics and a bootstrap server's /health on one port."""

    def __init__(self) -> None:
        self.queue, self.succeeded, self.healthy = 0, 0, True
        self.comments = 0

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        """In several packets, as from afar."""
        response = web.StreamResponse()
        await response.prepare(request)
        for text in (
            f"pdserve_num_waiting_reqs {self.queue}\npdserve_num_run",
            f"ning_reqs 0\npdserve_kv_transfers_success_total {self.succeeded}\n",
            "# nothing\n" * self.comments,
        ):
            await response.write(text.encode())
            await asyncio.sleep(PACKET_S)
        return response

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)


@pytest.fixture
async def worker() -> Worker:
    return Worker()


@pytest.fixture
async def found(worker: Worker) -> AsyncIterator[Targets]:
    app = web.Application()
    app.router.add_get("/metrics", worker.metrics)
    app.router.add_get("/health", worker.health)
    async with TestServer(app) as server:
        port = server.port
        assert port is not None
        one = Target(name="m-prefill-0", host="127.0.0.1", port=port, bootstrap_port=port)
        yield Targets(series=metrics.PDSERVE, workers=(one,))


@pytest.fixture
async def prober(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Prober]:
    monkeypatch.setattr(prober_module, "INTERVAL_S", 0.02)
    made = Prober(lambda key: None)
    yield made
    await made.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_reads_loads_again_and_again(prober: Prober, worker: Worker, found: Targets) -> None:
    prober.follow(KEY, found)
    await until(lambda: "m-prefill-0" in prober.sight(KEY).loads)
    worker.queue = 7
    await until(lambda: prober.sight(KEY).loads["m-prefill-0"].queue == 7)


async def test_tells_whether_bootstrap_servers_answer(
    prober: Prober, worker: Worker, found: Targets
) -> None:
    def reason() -> str:
        judged = prober.sight(KEY).bootstrap
        return judged.reason if judged else ""

    prober.follow(KEY, found)
    await until(lambda: reason() == "Reachable")
    worker.healthy = False
    await until(lambda: reason() == "BootstrapUnreachable")


async def test_tells_whether_kv_moves(prober: Prober, worker: Worker, found: Targets) -> None:
    prober.follow(KEY, found)
    await until(lambda: bool(prober.sight(KEY).totals))
    assert prober.sight(KEY).transfers is None
    worker.succeeded = 3
    await until(lambda: prober.sight(KEY).transfers is not None)


async def test_a_silent_worker_leaves_its_last_load(
    prober: Prober, worker: Worker, found: Targets
) -> None:
    prober.follow(KEY, found)
    await until(lambda: bool(prober.sight(KEY).loads))
    at = prober.sight(KEY).loads["m-prefill-0"].at
    [one] = found.workers
    closed = Target(name=one.name, host="127.0.0.1", port=9, bootstrap_port=9)
    prober.follow(KEY, Targets(series=found.series, workers=(closed,)))
    await until(lambda: not prober.sight(KEY).scrapes)
    assert prober.sight(KEY).loads["m-prefill-0"].at >= at


async def test_an_answer_without_end_is_none(
    prober: Prober, worker: Worker, found: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prober_module, "LARGEST", 1000)
    worker.comments = 200
    prober.follow(KEY, found)
    await until(lambda: prober.sight(KEY).bootstrap is not None)
    assert prober.sight(KEY).loads == {}


async def test_a_bug_in_one_round_does_not_end_the_others(
    prober: Prober, found: Targets, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = iter([True, True])

    def judge(*facts: Any) -> Any:
        if next(broken, False):
            raise ZeroDivisionError
        return transfers.judge(*facts)

    monkeypatch.setattr(prober_module, "judge", judge)
    prober.follow(KEY, found)
    await until(lambda: bool(prober.sight(KEY).loads))


async def test_nothing_stays_of_what_is_followed_no_more(prober: Prober, found: Targets) -> None:
    prober.follow(KEY, found)
    await until(lambda: bool(prober.sight(KEY).loads))
    prober.follow(KEY, Targets(series=found.series, workers=()))
    assert prober.sight(KEY).loads == {}


async def test_at_rest_nobody_is_asked_until_it_is_told_anew(
    prober: Prober, worker: Worker, found: Targets
) -> None:
    prober.follow(KEY, found)
    await until(lambda: bool(prober.sight(KEY).loads))
    prober.rest()
    assert prober.sight(KEY).loads == {}
    worker.queue = 9
    prober.follow(KEY, found)
    await until(lambda: bool(prober.sight(KEY).loads))
    assert prober.sight(KEY).loads["m-prefill-0"].queue == 9


def test_ready_first_pods_are_asked() -> None:
    made = resource()
    pods = [pod(made, "prefill", 0), pod(made, "decode", 0), pod(made, "decode", 1, ready=False)]
    asked = targets(made, observe(made, populated(made, *pods))).workers
    assert [(each.name, each.bootstrap_port) for each in asked] == [
        ("m-prefill-0", 8998),
        ("m-decode-0", None),
    ]
    assert asked[0].url(asked[0].port, "/metrics") == "http://10.0.0.1:30000/metrics"


def test_the_network_policy_lets_the_operator_ask() -> None:
    made = resource(networkPolicy={"enabled": True})
    pods = [pod(made, "prefill", 0), pod(made, "decode", 0)]
    asked = targets(made, observe(made, populated(made, *pods))).workers
    ports = {port for each in asked for port in (each.port, each.bootstrap_port) if port}
    rules = network_policy(made, "system")["spec"]["ingress"]
    [ours] = [rule for rule in rules if "namespaceSelector" in rule["from"][0]]
    assert {each["port"] for each in ours["ports"]} == ports

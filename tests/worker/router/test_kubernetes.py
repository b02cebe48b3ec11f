"""Workers from EndpointSlices: a server that answers like an API server, and a real router."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from pd_worker.errors import ConfigError
from pd_worker.router import kubernetes
from pd_worker.router.discovery import StaticDiscovery
from pd_worker.router.kubernetes import Joined, KubernetesDiscovery, specs_of
from pd_worker.router.options import KubernetesOptions
from pd_worker.router.worker import WorkerSpec
from tests.worker.router.conftest import until


def endpoints(name: str, service: str, *hosts: str, **conditions: bool) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/service-name": service},
            "resourceVersion": "7",
        },
        "ports": [{"name": "http", "port": 30000}, {"name": "bootstrap", "port": 8998}],
        "endpoints": [{"addresses": [host], "conditions": conditions} for host in hosts],
    }


def prefill(host: str) -> WorkerSpec:
    return WorkerSpec(url=f"http://{host}:30000", role="prefill", bootstrap_port=8998)


def decode(host: str) -> WorkerSpec:
    return WorkerSpec(url=f"http://{host}:30000", role="decode")


class Api:
    """Serves one list, and watches that end when told to."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.version = "1"
        self.lists = 0
        self.tokens: list[str] = []
        self.events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.fail_with = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers["Authorization"])
        if self.fail_with:
            return web.Response(status=self.fail_with)
        if "watch" not in request.query:
            self.lists += 1
            meta = {"resourceVersion": self.version}
            return web.json_response({"items": self.items, "metadata": meta})
        response = web.StreamResponse()
        await response.prepare(request)
        while event := await self.events.get():
            await response.write(json.dumps(event).encode() + b"\n")
            if event["type"] == "ERROR":
                break
        return response

    def tell(self, kind: str, value: dict[str, Any]) -> None:
        self.events.put_nowait({"type": kind, "object": value})


@pytest.fixture
async def api() -> AsyncIterator[tuple[Api, str]]:
    scripted = Api()
    app = web.Application()
    path = "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices"
    app.router.add_get(path, scripted.handle)
    async with TestServer(app) as server:
        yield scripted, str(server.make_url("/"))


@asynccontextmanager
async def followed(url: str, tmp_path: Path) -> AsyncIterator[Any]:
    """A function that returns the next list."""
    (tmp_path / "token").write_text("secret\n")
    options = KubernetesOptions(
        kubernetes_namespace="llm",
        kubernetes_prefill="m-prefill",
        kubernetes_decode="m-decode",
        kubernetes_api=url,
    )
    watch = KubernetesDiscovery(options, tmp_path).watch()
    yield lambda: asyncio.wait_for(anext(watch), 5)
    await watch.aclose()  # type: ignore[attr-defined]


async def test_lists_then_follows_changes(api: tuple[Api, str], tmp_path: Path) -> None:
    scripted, url = api
    scripted.items = [endpoints("a", "m-prefill", "10.0.0.1"), endpoints("b", "m-decode", "::1")]
    async with followed(url, tmp_path) as following:
        assert await following() == {prefill("10.0.0.1"), decode("[::1]")}
        scripted.tell("MODIFIED", endpoints("b", "m-decode", "10.0.0.2", "10.0.0.3"))
        assert await following() == {prefill("10.0.0.1"), decode("10.0.0.2"), decode("10.0.0.3")}
        scripted.tell("DELETED", endpoints("b", "m-decode"))
        assert await following() == {prefill("10.0.0.1")}
    assert set(scripted.tokens) == {"Bearer secret"}


async def test_a_watch_that_ends_goes_on_without_a_new_list(
    api: tuple[Api, str], tmp_path: Path
) -> None:
    scripted, url = api
    async with followed(url, tmp_path) as following:
        assert await following() == set()
        scripted.events.put_nowait(None)
        scripted.tell("ADDED", endpoints("a", "m-prefill", "10.0.0.1"))
        assert await following() == {prefill("10.0.0.1")}
    assert scripted.lists == 1


async def test_an_expired_watch_is_listed_anew(api: tuple[Api, str], tmp_path: Path) -> None:
    scripted, url = api
    async with followed(url, tmp_path) as following:
        assert await following() == set()
        scripted.items = [endpoints("a", "m-prefill", "10.0.0.1")]
        scripted.tell("ERROR", {"code": 410, "message": "too old"})
        assert await following() == {prefill("10.0.0.1")}


@pytest.mark.parametrize(
    "ending",
    [None, {"type": "ERROR", "object": {"code": 410, "message": "too old"}}],
    ids=["ends", "is too old"],
)
async def test_a_watch_that_ends_at_once_is_asked_ever_more_slowly(
    api: tuple[Api, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: Any
) -> None:
    monkeypatch.setattr(kubernetes, "FIRST_PAUSE_S", 0.02)
    scripted, url = api
    for _ in range(100):
        scripted.events.put_nowait(ending)
    async with followed(url, tmp_path) as following:
        began = time.monotonic()
        drained = asyncio.ensure_future(drain(following))
        await until(lambda: scripted.events.qsize() <= 93)
        assert time.monotonic() - began >= 0.5 * sum(0.02 * 2**n for n in range(6))
        drained.cancel()
        await asyncio.gather(drained, return_exceptions=True)


async def drain(following: Any) -> None:
    while True:
        await following()


async def test_an_unreachable_api_server_keeps_the_last_list(
    api: tuple[Api, str], tmp_path: Path
) -> None:
    scripted, url = api
    scripted.items = [endpoints("a", "m-prefill", "10.0.0.1")]
    async with followed(url, tmp_path) as following:
        assert await following() == {prefill("10.0.0.1")}
        scripted.fail_with = 503
        scripted.events.put_nowait(None)
        waiting = asyncio.ensure_future(following())
        await until(lambda: len(scripted.tokens) >= 4)
        assert not waiting.done()
        scripted.fail_with = 0
        scripted.tell("ADDED", endpoints("b", "m-decode", "10.0.0.2"))
        assert await waiting == {prefill("10.0.0.1"), decode("10.0.0.2")}


def test_a_terminating_endpoint_is_left_out() -> None:
    ending = endpoints("a", "m-decode", "10.0.0.1", terminating=True, serving=True)
    assert list(specs_of(ending, "decode")) == []


def test_without_a_service_account_it_says_so(tmp_path: Path) -> None:
    options = KubernetesOptions(
        kubernetes_namespace="llm", kubernetes_prefill="p", kubernetes_decode="d"
    )
    with pytest.raises(ConfigError, match="run the router in a pod"):
        KubernetesDiscovery(options, tmp_path)


async def test_joined_sources_are_told_together() -> None:
    first, second = StaticDiscovery([prefill("a")]), StaticDiscovery()
    watch = Joined((first, second)).watch()
    assert await anext(watch) == {prefill("a")}
    await second.add(decode("b"))
    assert await asyncio.wait_for(anext(watch), 5) == {prefill("a"), decode("b")}
    await watch.aclose()  # type: ignore[attr-defined]

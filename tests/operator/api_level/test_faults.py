"""An API server that answers late, wrongly, half or not at all: the end is what the spec says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from pd_operator.kinds import PDDEPLOYMENT
from pd_operator.service import Service
from tests.cluster.client import Client
from tests.operator.api_level.operators import Operator, quiet
from tests.operator.api_level.proxy import Fault, Proxy, proxied
from tests.operator.api_level.space import SERVICES, Space, until

pytestmark = pytest.mark.cluster


def refusal(code: int, message: str, **headers: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}
    return web.json_response(body, status=code, headers=headers)


def watches(request: web.Request) -> bool:
    return "watch" in request.query


async def slow(proxy: Proxy, request: web.Request) -> web.StreamResponse:
    """Everything takes a while."""
    await asyncio.sleep(0.15)
    return await proxy.forward(request)


async def overloaded(proxy: Proxy, request: web.Request) -> web.StreamResponse:
    """Every seventh request is one too many."""
    if proxy.asked % 7:
        return await proxy.forward(request)
    return refusal(429, "too many requests", **{"Retry-After": "1"})


async def unavailable(proxy: Proxy, request: web.Request) -> web.StreamResponse:
    """Two of five requests fail."""
    return refusal(503, "no") if proxy.asked % 5 < 2 else await proxy.forward(request)


async def reset(proxy: Proxy, request: web.Request) -> web.StreamResponse:
    """The answer to every third request is lost, whatever it was."""
    if proxy.asked % 3 or watches(request):
        return await proxy.forward(request)
    assert request.transport is not None
    async with proxy.answer(request) as answer:
        await answer.read()
    request.transport.abort()
    return web.Response()


async def cut(proxy: Proxy, request: web.Request) -> web.StreamResponse:
    """Every third answer about objects ends in its middle."""
    if proxy.asked % 3 or watches(request) or "/namespaces/" not in request.path:
        return await proxy.forward(request)
    return await in_its_middle(proxy, request)


async def in_its_middle(proxy: Proxy, request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    async with proxy.answer(request) as answer:
        response = await proxy.begin(request, answer)
        await response.write((await answer.read())[:40])
    request.transport.abort()
    return response


async def forgetful(proxy: Proxy, request: web.Request) -> web.StreamResponse:
    """Every watch is too old at once, or after its first change."""
    if not watches(request):
        return await proxy.forward(request)
    if proxy.asked % 2:
        return refusal(410, "too old resource version")
    async with proxy.answer(request) as answer:
        response = await proxy.begin(request, answer)
        await response.write(await answer.content.readline())
        status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
        await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
        return response


FAULTS: tuple[Fault, ...] = (slow, overloaded, unavailable, reset, cut, forgetful)


@pytest.fixture
async def proxy(api: Client, tmp_path: Path) -> AsyncIterator[tuple[Proxy, Path]]:
    async with proxied(api.kubeconfig, tmp_path) as found:
        yield found


@pytest.fixture
async def far_operator(space: Space, proxy: tuple[Proxy, Path]) -> AsyncIterator[Service]:
    """One that asks the proxy."""
    operators = Operator(proxy[1], space.namespace)
    yield await operators.start()
    proxy[0].fault = Proxy.forward
    await operators.stop()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
async def test_it_does_its_work_all_the_same(
    space: Space, proxy: tuple[Proxy, Path], far_operator: Service, fault: Fault
) -> None:
    proxy[0].fault, proxy[0].asked = fault, 0
    await space.create()
    await space.observed()
    await space.edit(router={"port": 9000})

    async def follows() -> bool:
        return bool((await space.get(SERVICES, "m"))["spec"]["ports"][0]["port"] == 9000)

    await until("the new port", follows)
    child = (await space.get(SERVICES, "m-decode"))["metadata"]
    await space.cluster.delete(SERVICES, space.namespace, "m-decode", child["uid"])

    async def back() -> bool:
        return bool((await space.get(SERVICES, "m-decode"))["metadata"]["uid"] != child["uid"])

    await until("the deleted child", back)
    assert proxy[0].asked > 20
    proxy[0].fault = Proxy.forward
    await quiet(space, far_operator)
    assert (await space.get(PDDEPLOYMENT, "m"))["status"]["observedGeneration"] == 2


async def test_kopf_is_begun_anew_after_half_an_answer_to_its_search_for_resources(
    space: Space, proxy: tuple[Proxy, Path]
) -> None:
    searches = 0

    async def once(proxy: Proxy, request: web.Request) -> web.StreamResponse:
        nonlocal searches
        if request.path == "/apis":  # nobody but kopf asks for all groups
            searches += 1
            if searches == 1:
                return await in_its_middle(proxy, request)
        return await proxy.forward(request)

    proxy[0].fault = once
    operators = Operator(proxy[1], space.namespace)
    await operators.start()

    async def begun_anew() -> bool:
        return searches > 1

    await until("a second search", begun_anew)
    await space.create()
    await space.observed()
    await operators.stop()

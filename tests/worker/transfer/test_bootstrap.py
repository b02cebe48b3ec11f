"""The phone book: its HTTP interface, leases, identities, tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient

from pd_worker.transfer.args import Route
from pd_worker.transfer.bootstrap import make_app
from pd_worker.transfer.keys import bootstrap_token
from pd_worker.transfer.registry import Registry, RouteRefused
from tests.worker.transfer.conftest import Factory
from tests.worker.transfer.harness import Decode, Prefill, ServerThread, options, transfer, until

MakeClient = Callable[..., Awaitable[TestClient[web.Request, web.Application]]]
SENTINEL = {
    "prefill_dp_rank": -1,
    "prefill_cp_rank": -1,
    "target_tp_rank": -1,
    "target_pp_rank": -1,
}
RANK0 = dict.fromkeys(SENTINEL, 0)
RIGHTS: tuple[Literal["write"], Literal["read"]] = ("write", "read")


def route(**changes: Any) -> Route:
    fields: dict[str, Any] = {
        "rank_ip": "10.0.0.1",
        "rank_port": 5000,
        "incarnation": "a" * 32,
        "protocol_version": 1,
        "page_size": 16,
        "kv_cache_dtype": "float32",
        "kv_layout": "page-major/1",
        "pairing_key": "key",
        "lease_ttl_s": 10.0,
    }
    return Route(**(fields | changes))


def body(**changes: Any) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(route())
    return built | changes


async def test_a_registered_rank_is_found(aiohttp_client: MakeClient) -> None:
    client = await aiohttp_client(make_app())
    assert (await client.get("/route", params=SENTINEL)).status == 503
    assert (await client.put("/route", json=body())).status == 200
    info = await (await client.get("/route", params=SENTINEL)).json()
    assert info["pairing_key"] == "key"
    assert info["incarnations"] == ["a" * 32]
    assert info["protocol_version"] == 1
    rank = await (await client.get("/route", params=RANK0)).json()
    assert rank == {"rank_ip": "10.0.0.1", "rank_port": 5000, "incarnation": "a" * 32}
    assert (await client.get("/route", params={**RANK0, "target_tp_rank": 1})).status == 404
    assert (await client.get("/health")).status == 200


async def test_a_process_takes_its_own_rows_out(aiohttp_client: MakeClient) -> None:
    client = await aiohttp_client(make_app())
    await client.put("/route", json=body())
    await client.delete("/route", params={"incarnation": "b" * 32})
    assert (await client.get("/route", params=SENTINEL)).status == 200
    await client.delete("/route", params={"incarnation": "a" * 32})
    assert (await client.get("/route", params=SENTINEL)).status == 503


async def test_an_instance_is_there_when_all_its_ranks_are(aiohttp_client: MakeClient) -> None:
    client = await aiohttp_client(make_app())
    for _ in range(2):  # twice the same rank is not two ranks
        await client.put("/route", json=body(tp_size=2))
    assert (await client.get("/route", params=RANK0)).status == 503
    await client.put("/route", json=body(tp_size=2, tp_rank=1, incarnation="b" * 32))
    info = await (await client.get("/route", params=SENTINEL)).json()
    assert info["incarnations"] == ["a" * 32, "b" * 32]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"rank_port": 0}, "rank_port"),
        ({"rank_port": "x"}, "rank_port"),
        ({"rank_ip": ""}, "rank_ip"),
        ({"rank_ip": "x" * 1000}, "rank_ip"),
        ({"page_size": 0}, "page_size"),
        ({"lease_ttl_s": 0}, "lease_ttl_s"),
        ({"tp_rank": 1}, "tp_rank"),
        ({"incarnation": None}, "incarnation"),
        ({"surprise": 1}, "surprise"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_bad_field_is_named(
    change: dict[str, Any], field: str, aiohttp_client: MakeClient
) -> None:
    client = await aiohttp_client(make_app())
    answer = await client.put("/route", json=body(**change))
    assert answer.status == 400
    assert (await answer.json())["error"]["field"] == field


@pytest.mark.parametrize("field", ["rank_ip", "incarnation", "pairing_key", "lease_ttl_s"])
async def test_a_missing_field_is_named(field: str, aiohttp_client: MakeClient) -> None:
    client = await aiohttp_client(make_app())
    answer = await client.put("/route", json={k: v for k, v in body().items() if k != field})
    assert answer.status == 400
    assert (await answer.json())["error"]["field"] == field


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[1]", b"null"])
async def test_other_bodies_are_refused(data: bytes, aiohttp_client: MakeClient) -> None:
    client = await aiohttp_client(make_app())
    assert (await client.put("/route", data=data)).status == 400


async def test_a_huge_body_is_refused(aiohttp_client: MakeClient) -> None:
    client = await aiohttp_client(make_app())
    assert (await client.put("/route", data=b"x" * (1 << 20))).status == 413


@pytest.mark.parametrize("name", list(SENTINEL))
async def test_a_missing_query_parameter_is_named(name: str, aiohttp_client: MakeClient) -> None:
    client = await aiohttp_client(make_app())
    answer = await client.get("/route", params={k: v for k, v in RANK0.items() if k != name})
    assert answer.status == 400
    assert (await answer.json())["error"]["field"] == name


@pytest.mark.parametrize("method", ["PUT", "GET", "DELETE"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [({}, 401), ({"Authorization": "Basic x"}, 401), ({"Authorization": "Bearer x"}, 403)],
    ids=["none", "other scheme", "wrong"],
)
async def test_without_the_token_nothing_is_told_or_changed(
    method: str, headers: dict[str, str], status: int, aiohttp_client: MakeClient
) -> None:
    client = await aiohttp_client(make_app("secret"))
    ours = {"Authorization": f"Bearer {bootstrap_token('secret', 'write')}"}
    await client.put("/route", json=body(), headers=ours)
    params = {**SENTINEL, "incarnation": "a" * 32}
    forged = body(rank_ip="6.6.6.6", incarnation="f" * 32)
    answer = await client.request(method, "/route", params=params, json=forged, headers=headers)
    assert answer.status == status
    rank = await (await client.get("/route", params=RANK0, headers=ours)).json()
    assert rank["rank_ip"] == "10.0.0.1"
    assert (await client.get("/health")).status == 200


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("PUT", 403), ("DELETE", 403)])
async def test_decodes_token_reads_and_nothing_else(
    method: str, status: int, aiohttp_client: MakeClient
) -> None:
    client = await aiohttp_client(make_app("secret"))
    writer, reader = (
        {"Authorization": f"Bearer {bootstrap_token('secret', right)}"} for right in RIGHTS
    )
    await client.put("/route", json=body(), headers=writer)
    params = RANK0 if method == "GET" else {**SENTINEL, "incarnation": "a" * 32}
    answer = await client.request(method, "/route", params=params, json=body(), headers=reader)
    assert answer.status == status
    assert (await client.get("/route", params=RANK0, headers=writer)).status == 200


async def test_only_the_same_address_replaces_a_live_row(aiohttp_client: MakeClient) -> None:
    client = await aiohttp_client(make_app())
    await client.put("/route", json=body())
    forged = await client.put("/route", json=body(rank_ip="6.6.6.6", incarnation="f" * 32))
    assert forged.status == 409
    restarted = await client.put("/route", json=body(rank_port=5001, incarnation="b" * 32))
    assert restarted.status == 200
    rank = await (await client.get("/route", params=RANK0)).json()
    assert rank["rank_port"] == 5001


def test_with_the_token_another_address_replaces_a_live_row() -> None:
    registry = Registry()
    registry.put(route(), 0.0, trusted=True)
    registry.put(route(rank_ip="10.0.0.2", incarnation="b" * 32), 1.0, trusted=True)
    found = registry.address((0, 0, 0, 0))
    assert found is not None
    assert found.rank_ip == "10.0.0.2"


def test_a_lease_runs_out_unless_it_is_renewed() -> None:
    registry = Registry()
    registry.put(route(), 0.0, trusted=False)
    registry.put(route(), 9.0, trusted=False)
    assert registry.info(18.0) is not None
    assert registry.info(19.1) is None
    registry.put(route(rank_ip="6.6.6.6", incarnation="f" * 32), 20.0, trusted=False)


@pytest.mark.parametrize("change", [{"page_size": 64}, {"pairing_key": "other"}, {"tp_size": 3}])
def test_ranks_of_one_instance_must_agree(change: dict[str, Any]) -> None:
    registry = Registry()
    registry.put(route(tp_size=2), 0.0, trusted=True)
    with pytest.raises(RouteRefused) as refused:
        registry.put(route(**{"tp_size": 2, "tp_rank": 1} | change), 0.0, trusted=True)
    assert refused.value.status == 400
    assert refused.value.field == next(iter(change))


# with managers


def test_registration_is_renewed_and_comes_back_after_the_server_restarts(
    start_prefill: Factory, decode: Decode
) -> None:
    prefill: Prefill = start_prefill(link=options(lease_ttl_s=0.6))
    prefill.server.close()
    until(lambda: not prefill.manager.registered, 5.0)
    prefill.server = ServerThread(make_app(), port=prefill.port)
    until(lambda: prefill.manager.registered, 5.0)
    transfer(prefill, decode, 1)


def test_a_closed_prefill_is_not_found_any_more(prefill: Prefill, decode: Decode) -> None:
    transfer(prefill, decode, 1)
    prefill.manager.close()
    assert not prefill.manager.registered
    receiver = decode.manager.create_receiver("127.0.0.1", prefill.port, 2)
    receiver.init()
    receiver.abort("enough")


@pytest.mark.parametrize("address", ["mute", "closed", "unroutable", "unknown"])
def test_a_prefill_that_cannot_be_looked_up_holds_nobody_up(
    address: str, prefill: Prefill, start_decode: Factory
) -> None:
    async def mute(request: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    decode = start_decode(link=options(bootstrap_timeout_s=1.5))
    app = web.Application()
    app.router.add_get("/route", mute)
    server = ServerThread(app)
    host, port = {
        "mute": ("127.0.0.1", server.port),
        "closed": ("127.0.0.1", 1),
        "unroutable": ("10.255.255.1", 9),
        "unknown": ("no-such-host.invalid", 9),
    }[address]
    receiver = decode.manager.create_receiver(host, port, 1)
    receiver.init()
    for room in range(10, 30):
        transfer(prefill, decode, room)
    until(lambda: receiver.poll() == 0, 3.0)
    assert "not registered within 1.5 s" in receiver.failure()
    assert decode.manager.problem() == ""
    server.close()


def test_addresses_where_nobody_lives_are_forgotten(decode: Decode) -> None:
    for port in range(1, 60):
        decode.manager.reject("127.0.0.1", port, port, "nobody there")
    until(lambda: decode.manager.gauges()["kv_peers"] > 0)
    until(lambda: decode.manager.gauges()["kv_peers"] == 0, 15.0)


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"{"), (200, b"{}"), (500, b"\xff\xfe")], ids=str
)
def test_a_foreign_answer_on_the_bootstrap_port_does_not_end_the_registration(
    status: int, body: bytes, start_prefill: Factory
) -> None:
    prefill: Prefill = start_prefill(link=options(lease_ttl_s=0.6))
    prefill.server.close()
    until(lambda: not prefill.manager.registered, 5.0)

    async def foreign(request: web.Request) -> web.Response:
        asked.append(request.method)
        return web.Response(status=status, body=body)

    asked: list[str] = []
    app = web.Application()
    app.router.add_route("*", "/route", foreign)
    stranger = ServerThread(app, port=prefill.port)
    until(lambda: len(asked) > 2, 5.0)
    stranger.close()
    prefill.server = ServerThread(make_app(), port=prefill.port)
    until(lambda: prefill.manager.registered, 5.0)

"""Both legs of a request: what they get, how the client's answer is made, and who is told."""

from __future__ import annotations

import asyncio
import io
import json
import time
from typing import Any

import pytest
from aiohttp import web

from tests.worker.router.conftest import DONE, Stub, chunk, open_stream, serve_normally, until

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


async def test_both_legs_get_the_same_body_with_the_prefills_address_and_a_room(front):
    f = await front()
    status, headers, answer = await f.ask(**CHAT, temperature=0.3)
    (prefill,), (decode,) = f.prefill[0].bodies, f.decode[0].bodies
    assert status == 200
    assert answer["choices"][0]["message"]["content"] == "abc"
    assert prefill == decode
    assert prefill["bootstrap_host"] == "127.0.0.1"
    assert prefill["bootstrap_port"] == 8998
    assert 0 < prefill["bootstrap_room"] < 2**63
    assert prefill["temperature"] == 0.3
    assert headers["x-pdserve-pair"] == f"{f.prefill[0].url}|{f.decode[0].url}"
    assert headers["x-pdserve-attempts"] == "1"


@pytest.mark.parametrize(
    ("path", "body", "batch"),
    [
        pytest.param("/v1/completions", {"prompt": "a"}, None, id="text"),
        pytest.param("/v1/completions", {"prompt": [1, 2]}, None, id="ids"),
        pytest.param("/v1/completions", {"prompt": ["a", "b", "c"]}, 3, id="texts"),
        pytest.param("/v1/completions", {"prompt": [[1], [2]]}, 2, id="lists of ids"),
        pytest.param("/generate", {"text": ["a", "b"]}, 2, id="native texts"),
        pytest.param("/generate", {"input_ids": [[1], [2], [3]]}, 3, id="native lists of ids"),
        pytest.param("/generate", {"input_ids": [1, 2]}, None, id="native ids"),
    ],
)
async def test_a_batch_gets_lists_with_a_room_for_each_prompt(front, path, body, batch):
    f = await front()
    await f.ask(path, **body)
    sent = f.decode[0].bodies[0]
    if batch is None:
        assert isinstance(sent["bootstrap_room"], int)
    else:
        assert len(set(sent["bootstrap_room"])) == batch
        assert sent["bootstrap_host"] == ["127.0.0.1"] * batch
        assert sent["bootstrap_port"] == [8998] * batch


async def test_an_advertised_bootstrap_host_goes_before_the_urls(front):
    f = await front(prefill=[Stub("prefill", advertise_host="::1", bootstrap_port=7)])
    await f.ask()
    assert f.decode[0].bodies[0]["bootstrap_host"] == "::1"
    assert f.decode[0].bodies[0]["bootstrap_port"] == 7


async def test_a_unified_worker_gets_the_body_as_it_is(front):
    f = await front(prefill=0, decode=0, unified=1)
    status, headers, _ = await f.ask(**CHAT)
    assert status == 200
    assert f.unified[0].bodies == [CHAT]
    assert headers["x-pdserve-pair"] == f.unified[0].url


async def test_prefill_may_wait_for_decode_to_connect(front):
    f = await front()

    async def after_decode(stub: Stub, request: web.Request) -> web.StreamResponse:
        await until(lambda: f.decode[0].running)
        return await serve_normally(stub, request)

    f.prefill[0].script = after_decode
    assert (await f.ask())[0] == 200


async def test_a_stream_arrives_as_decode_sends_it(front):
    f = await front()
    gate = asyncio.Event()

    async def slowly(stub: Stub, request: web.Request) -> web.StreamResponse:
        response = await open_stream(request)
        await response.write(chunk("one"))
        await gate.wait()
        await response.write(chunk("two") + DONE)
        return response

    f.decode[0].script = slowly
    async with f.stream() as response:
        assert await response.content.readuntil(b"\n\n") == chunk("one")
        gate.set()
        assert await response.read() == chunk("two") + DONE
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.content_type == "text/event-stream"


async def test_a_complete_answer_does_not_wait_for_prefills_end(front):
    f = await front()
    f.prefill[0].script = delivers_but_hangs
    start = time.monotonic()
    async with f.stream() as response:
        assert (await response.read()).endswith(DONE)
    assert time.monotonic() - start < 1
    await f.idle(within_s=4)


async def delivers_but_hangs(stub: Stub, request: web.Request) -> web.StreamResponse:
    await stub.meet()
    return await hang(stub, request)


async def hang(stub: Stub, request: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.mark.parametrize("moment", ["before headers", "before the first token", "mid stream"])
async def test_both_legs_end_when_the_client_leaves(front, moment):
    f = await front()

    async def script(stub: Stub, request: web.Request) -> web.StreamResponse:
        if moment != "before headers":
            response = await open_stream(request)
            if moment == "mid stream" and stub.role == "decode":
                await response.write(chunk("x"))
        return await hang(stub, request)

    for stub in f.stubs:
        stub.script = script

    async def client() -> None:
        async with f.stream() as response:
            await response.read()

    task = asyncio.create_task(client())
    await until(lambda: all(stub.running for stub in f.stubs))
    await asyncio.sleep(0.05)
    task.cancel()
    await f.idle(within_s=1)
    assert [stub.cancelled for stub in f.stubs] == [1, 1]
    await until(lambda: not f.router.dispatcher.admission.inflight)


async def test_a_large_body_that_prefill_does_not_read_ends_with_the_client(front):
    f = await front(prefill=0)
    f.decode[0].script = hang
    connected, over = asyncio.Event(), asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET"):
            facts = json.dumps(Stub("prefill").facts).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(facts), facts))
        connected.set()
        await over.wait()
        writer.close()

    async with await asyncio.start_server(deaf, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await f.session.post("/workers", json={"url": url, "role": "prefill"})
        await until(lambda: [worker.usable for worker in f.router.registry] == [True, True])
        body = io.BytesIO(json.dumps({"prompt": "x" * (15 << 20)}).encode())
        task = asyncio.create_task(f.session.post("/v1/completions", data=body))
        await until(lambda: connected.is_set() and f.decode[0].running, within_s=10)
        task.cancel()
        await f.idle(within_s=1)
        await until(lambda: not f.router.dispatcher.admission.inflight, within_s=1)
        over.set()


async def test_300_slow_streams_are_all_upstream_at_once(front):
    f = await front()
    gate = asyncio.Event()

    async def slow(stub: Stub, request: web.Request) -> web.StreamResponse:
        await gate.wait()
        response = await open_stream(request)
        await response.write(chunk("x") + DONE)
        return response

    for stub in f.stubs:
        stub.script = slow

    f.session.connector._limit = 0  # type: ignore[union-attr]

    async def client() -> bytes:
        async with f.stream() as response:
            return await response.read()

    async with asyncio.TaskGroup() as clients:
        tasks = [clients.create_task(client()) for _ in range(300)]
        await until(lambda: all(stub.running == 300 for stub in f.stubs), within_s=30)
        gate.set()
    assert all(task.result().endswith(DONE) for task in tasks)


async def test_rooms_are_distinct_over_many_requests(front):
    f = await front()
    for _ in range(10):
        await asyncio.gather(*(f.ask() for _ in range(50)))
    rooms = [body["bootstrap_room"] for body in f.decode[0].bodies]
    assert len(set(rooms)) == 500


async def test_keep_alive_comments_are_passed_on_only_after_a_long_wait(front, monkeypatch):
    monkeypatch.setattr("pd_worker.router.answer.HOLD_S", 0.05)
    f = await front()
    gate = asyncio.Event()

    async def waits(stub: Stub, request: web.Request) -> web.StreamResponse:
        response = await open_stream(request)
        await response.write(b": early\n\n")
        await asyncio.sleep(0.1)
        await response.write(b": keep-alive\n\n")
        await gate.wait()
        await response.write(chunk("x") + DONE)
        return response

    f.decode[0].script = waits
    async with f.stream() as response:
        assert await response.content.readuntil(b"\n\n") == b": waiting\n\n"
        assert await response.content.readuntil(b"\n\n") == b": keep-alive\n\n"
        gate.set()
        assert await response.read() == chunk("x") + DONE


async def test_a_long_wait_opens_the_stream_and_still_allows_another_attempt(front, monkeypatch):
    monkeypatch.setattr("pd_worker.router.answer.HOLD_S", 0.05)
    f = await front()
    gate = asyncio.Event()

    async def fails_late(stub: Stub, request: web.Request) -> web.StreamResponse:
        if len(stub.calls) > 1:
            return await serve_normally(stub, request)
        await gate.wait()
        return web.json_response({}, status=500)

    f.prefill[0].script = fails_late
    async with f.stream() as response:
        assert await response.content.readuntil(b"\n\n") == b": waiting\n\n"
        gate.set()
        assert await response.read() == chunk("a") + chunk("b") + chunk("c") + DONE


async def test_the_request_id_is_kept_and_reaches_both_legs(front):
    f = await front()
    async with f.session.post(
        "/v1/chat/completions", json=CHAT, headers={"X-Request-ID": "abc-1", "Cookie": "c=1"}
    ) as response:
        assert response.headers["X-Request-ID"] == "abc-1"
    for stub in f.stubs:
        assert stub.calls[0].headers["X-Request-ID"] == "abc-1"
        assert "Cookie" not in stub.calls[0].headers


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "ümlaut"])
async def test_an_unfit_request_id_is_replaced(front, given):
    f = await front()
    headers = {"X-Request-ID": given}
    async with f.session.post("/v1/chat/completions", json=CHAT, headers=headers) as response:
        made = response.headers["X-Request-ID"]
    assert len(made) == 32
    assert f.decode[0].calls[0].headers["X-Request-ID"] == made


def bad_bodies() -> list[Any]:
    return [
        pytest.param(b"{", id="no json"),
        pytest.param(b"[1]", id="no object"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"prompt": []}', id="empty batch"),
        pytest.param(json.dumps({"prompt": ["a"] * 5000}).encode(), id="huge batch"),
        *(
            pytest.param(json.dumps({**CHAT, name: value}).encode(), id=name)
            for name, value in (
                ("bootstrap_room", 0),
                ("bootstrap_host", "10.0.0.1"),
                ("bootstrap_port", 1),
                ("bootstrap_pair_key", "x"),
                ("kv_transfer_params", {}),
                ("room", 1),
            )
        ),
    ]


@pytest.mark.parametrize("data", bad_bodies())
async def test_a_bad_body_is_refused_before_any_leg_is_sent(front, data):
    f = await front()
    async with f.session.post("/v1/completions", data=data) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "invalid_request_error"
    assert not any(stub.calls for stub in f.stubs)


async def test_a_trusted_clients_room_is_sent_as_it_is_and_only_once(front):
    f = await front(trust_client_pd_fields=True)
    f.decode[0].script = lambda stub, request: _status(500)
    fields = {"bootstrap_host": "h", "bootstrap_port": 5, "bootstrap_room": 77}
    status, _, _ = await f.ask(**CHAT, **fields)
    assert status == 500
    assert f.prefill[0].bodies == [{**CHAT, **fields}]


async def _status(status: int) -> web.Response:
    return web.json_response({"error": {"message": "no"}}, status=status)


async def test_too_large_a_body_is_413(front):
    f = await front()
    async with f.session.post("/generate", data=io.BytesIO(b"x" * (17 << 20))) as response:
        assert response.status == 413
        assert (await response.json())["error"]["code"] == "body_too_large"

"""What ends badly: each leg in every way and at several moments, retries, and their limits."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

import pytest
from aiohttp import web

from tests.worker.router.conftest import (
    DONE,
    Script,
    Stub,
    chunk,
    open_stream,
    serve_normally,
    until,
)

WAYS = ("400", "500", "refuse", "rst", "hang", "cut")
EXPECTED = {"400": 400, "500": 500, "refuse": 502, "rst": 502, "hang": 504, "cut": 502}
ERROR = {"error": {"message": "from the worker", "type": "t", "param": None, "code": "c"}}
DEADLINE_S = 0.6


def failing(way: str, after_s: float = 0.0) -> Script:
    async def script(stub: Stub, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(after_s)
        if way.isdigit():
            return web.json_response(ERROR, status=int(way), headers={"Retry-After": "7"})
        if way == "hang":
            await asyncio.Event().wait()
        if way == "cut":
            response = await open_stream(request)
            await response.write(b": about to go\n\n")
            await asyncio.sleep(0.01)
        assert request.transport is not None
        request.transport.abort()
        await asyncio.Event().wait()
        raise AssertionError

    return script


async def waiting(stub: Stub, request: web.Request) -> web.StreamResponse:
    """The healthy leg as it is while the other one has not done its part."""
    response = await open_stream(request)
    await asyncio.Event().wait()
    return response


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("after_s", [0.0, 0.2], ids=["at once", "later"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_the_first_failing_leg_decides_and_ends_the_other(front, role, way, after_s, streams):
    f = await front(max_attempts=1, request_timeout_s=DEADLINE_S + after_s)
    bad, good = (f.prefill[0], f.decode[0])[:: 1 if role == "prefill" else -1]
    bad.script, good.script = failing(way, after_s), waiting
    if way == "refuse":
        await f.stop(bad)
    start = time.monotonic()
    async with f.stream(stream=streams) as response:
        body = await response.json()
    fails_at = after_s + (DEADLINE_S if way == "hang" else 0.02)
    assert time.monotonic() - start < fails_at + 1
    assert response.status == EXPECTED[way]
    if way.isdigit():
        assert body == ERROR
        assert response.headers["Retry-After"] == "7"
    assert body["error"]["message"]
    await f.idle(within_s=1)
    assert not f.router.dispatcher.admission.inflight


@pytest.mark.parametrize("way", ["rst", "cut", "hang"])
async def test_decode_failing_after_the_first_token_is_an_error_event_that_ends_the_stream(
    front, way
):
    f = await front(request_timeout_s=DEADLINE_S)

    async def script(stub: Stub, request: web.Request) -> web.StreamResponse:
        response = await open_stream(request)
        await response.write(chunk("one"))
        return await failing("hang" if way == "hang" else "rst", 0.05)(stub, request)

    f.decode[0].script = script
    async with f.stream() as response:
        events = (await response.read()).split(b"\n\n")
    assert response.status == 200
    assert events[0] + b"\n\n" == chunk("one")
    assert json.loads(events[1].removeprefix(b"data: "))["error"]["message"]
    assert events[2:] == [b"data: [DONE]", b""]
    assert len(f.decode[0].calls) == 1
    await f.idle()


@pytest.mark.parametrize("samples", [1, 2])
async def test_prefill_failing_after_the_first_token_harms_only_other_samples(front, samples):
    f = await front()
    first = asyncio.Event()

    async def prefill(stub: Stub, request: web.Request) -> web.StreamResponse:
        await first.wait()
        return await failing("rst")(stub, request)

    async def decode(stub: Stub, request: web.Request) -> web.StreamResponse:
        response = await open_stream(request)
        await response.write(chunk("one"))
        first.set()
        await asyncio.sleep(0.1)
        await response.write(chunk("two") + DONE)
        return response

    f.prefill[0].script, f.decode[0].script = prefill, decode
    async with f.stream(n=samples) as response:
        answer = await response.read()
    if samples == 1:
        assert answer == chunk("one") + chunk("two") + DONE
    else:
        assert answer.startswith(chunk("one") + b'data: {"error"')
        assert answer.endswith(DONE)


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("error", "status"),
    [
        pytest.param({"message": "m", "code": "invalid_request_error"}, 400, id="bad request"),
        pytest.param({"message": "m", "code": 429}, 429, id="number"),
        pytest.param({"message": "m", "code": "unavailable"}, 503, id="unavailable"),
        pytest.param({"message": "m"}, 500, id="untold"),
    ],
)
async def test_an_error_event_before_the_first_token_becomes_a_status(front, role, error, status):
    f = await front(max_attempts=1)

    async def script(stub: Stub, request: web.Request) -> web.StreamResponse:
        response = await open_stream(request)
        await response.write(b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
        return response

    bad, good = (f.prefill[0], f.decode[0])[:: 1 if role == "prefill" else -1]
    bad.script, good.script = script, waiting
    async with f.stream() as response:
        assert response.status == status
        assert (await response.json())["error"]["message"] == "m"
    await f.idle()


async def test_an_error_event_after_the_first_token_is_passed_on_and_is_last(front):
    f = await front()
    error = b"data: " + json.dumps(ERROR).encode() + b"\n\n"

    async def script(stub: Stub, request: web.Request) -> web.StreamResponse:
        response = await open_stream(request)
        await response.write(chunk("one"))
        await response.write(error + DONE)
        return response

    f.decode[0].script = script
    async with f.stream() as response:
        assert await response.read() == chunk("one") + error + DONE


@pytest.mark.parametrize("way", ["500", "503", "refuse", "rst", "cut"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_failed_attempt_goes_to_another_pair_with_a_new_room(front, role, way):
    f = await front(prefill=2, decode=2, policy="round_robin", decode_policy="round_robin")
    bad = getattr(f, role)[0]
    bad.script = failing(way)
    if way == "refuse":
        await f.stop(bad)
    answers = [await f.ask() for _ in range(4)]
    assert [status for status, _, _ in answers] == [200] * 4
    assert "2" in {headers["x-pdserve-attempts"] for _, headers, _ in answers}
    rooms = Counter(body["bootstrap_room"] for stub in f.stubs for body in stub.bodies)
    assert max(rooms.values()) == 2, "a room was used by more than one attempt"


async def test_a_retry_names_the_bootstrap_address_of_its_own_prefill(front):
    f = await front(prefill=[Stub("prefill", bootstrap_port=1), Stub("prefill", bootstrap_port=2)])
    for stub in f.prefill:
        stub.script = once(failing("500"))
    _, headers, _ = await f.ask()
    ports = [body["bootstrap_port"] for body in f.decode[0].bodies]
    used = [stub.bodies[0]["bootstrap_port"] for stub in f.prefill]
    assert used == [1, 2]
    assert set(ports) == {1, 2}
    assert headers["x-pdserve-attempts"] == "3"


def once(script: Script) -> Script:
    """Only the first request fails."""

    async def chosen(stub: Stub, request: web.Request) -> web.StreamResponse:
        return await (script if len(stub.calls) == 1 else serve_normally)(stub, request)

    return chosen


async def test_the_only_pair_is_tried_again(front):
    f = await front()
    f.decode[0].script = once(failing("rst"))
    status, headers, _ = await f.ask()
    assert (status, headers["x-pdserve-attempts"]) == (200, "2")


async def test_a_role_chunk_does_not_end_the_chance_of_another_attempt(front):
    f = await front()
    role = chunk("", x=1).replace(b'"content": ""', b'"role": "assistant", "content": ""')

    async def script(stub: Stub, request: web.Request) -> web.StreamResponse:
        response = await open_stream(request)
        await response.write(role)
        if len(stub.calls) == 1:
            return await failing("rst", 0.05)(stub, request)
        await response.write(chunk("x") + DONE)
        return response

    f.decode[0].script = script
    async with f.stream() as response:
        assert await response.read() == role + chunk("x") + DONE


@pytest.mark.parametrize("status", [400, 401, 404, 408, 413, 422, 501, 504])
async def test_what_would_fail_again_is_not_sent_again(front, status):
    f = await front(prefill=2, decode=2)
    for stub in f.prefill:
        stub.script = failing(str(status))
    got, headers, body = await f.ask()
    assert (got, headers["x-pdserve-attempts"], body) == (status, "1", ERROR)


async def test_a_full_worker_is_left_for_another_and_told_when_all_are_full(front):
    f = await front(prefill=2)
    for stub in f.prefill:
        stub.script = failing("429")
    status, headers, _ = await f.ask()
    assert (status, headers["Retry-After"], headers["x-pdserve-attempts"]) == (429, "7", "2")
    f.prefill[1].script = serve_normally
    assert {(await f.ask())[0] for _ in range(4)} == {200}


async def test_no_more_attempts_than_allowed(front):
    f = await front(prefill=4, max_attempts=3)
    for stub in f.prefill:
        stub.script = failing("500")
    status, headers, _ = await f.ask()
    assert (status, headers["x-pdserve-attempts"]) == (500, "3")
    assert sum(len(stub.calls) for stub in f.prefill) == 3


async def test_a_hundred_400s_leave_the_breaker_closed(front):
    f = await front()
    f.prefill[0].script = f.decode[0].script = failing("400")
    for _ in range(10):
        answers = await asyncio.gather(*(f.ask() for _ in range(10)))
        assert {status for status, _, _ in answers} == {400}
    assert {worker.breaker.state for worker in f.router.registry} == {"closed"}


async def test_a_worker_that_fails_everything_gets_hardly_any_traffic_until_it_recovers(front):
    f = await front(prefill=0, decode=0, unified=3, policy="round_robin", breaker_cooldown_s=1)
    bad = f.unified[0]
    bad.script = failing("500")
    for _ in range(60):
        answers = await asyncio.gather(*(f.ask() for _ in range(10)))
        assert {status for status, _, _ in answers} == {200}
    assert len(bad.calls) < 0.02 * 600 + 10, "5 to open the breaker, those in flight, a few tries"
    bad.script = serve_normally
    await asyncio.sleep(0)
    worker = next(worker for worker in f.router.registry if worker.spec.url == bad.url)
    await until(lambda: worker.breaker.wants_probe, within_s=9)
    before = len(bad.calls)
    for _ in range(9):
        await f.ask()
    assert len(bad.calls) - before >= 3
    assert worker.breaker.state == "closed"


async def test_a_worker_that_hangs_everything_opens_its_breaker(front):
    f = await front(request_timeout_s=0.1, breaker_failures=2)
    f.prefill[0].script, f.decode[0].script = failing("hang"), waiting
    assert {(await f.ask())[0] for _ in range(2)} == {504}
    assert [worker.breaker.state for worker in f.router.registry] == ["closed", "open"] or [
        worker.breaker.state for worker in f.router.registry
    ] == ["open", "closed"]
    status, headers, body = await f.ask()
    assert status == 503
    assert headers["Retry-After"]
    assert "failed too often" in body["error"]["message"]


async def test_a_frozen_worker_loses_what_runs_on_it(front):
    f = await front(health_interval_s=0.05, health_timeout_s=0.05, max_attempts=1)
    f.prefill[0].script, f.decode[0].script = waiting, waiting
    asked = asyncio.create_task(f.ask())
    await until(lambda: f.decode[0].running)
    f.decode[0].thawed.clear()
    status, _, body = await asyncio.wait_for(asked, 2)
    assert status == 502
    assert "stopped answering" in body["error"]["message"]
    await f.idle()
    f.decode[0].thawed.set()
    await until(lambda: all(worker.state == "healthy" for worker in f.router.registry))


async def test_the_queue_is_bounded_and_served_in_turn(front):
    f = await front(max_inflight=2, max_queued=3)
    gate = asyncio.Event()

    async def script(stub: Stub, request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return await serve_normally(stub, request)

    f.decode[0].script = script
    tasks = [asyncio.create_task(f.ask()) for _ in range(5)]
    await until(lambda: f.router.dispatcher.admission.queued == 3)
    status, headers, body = await f.ask()
    assert (status, headers["Retry-After"], body["error"]["code"]) == (429, "1", "queue_full")
    assert f.decode[0].running <= 2
    gate.set()
    assert [status for status, _, _ in await asyncio.gather(*tasks)] == [200] * 5
    assert f.router.dispatcher.admission.inflight == f.router.dispatcher.admission.queued == 0


async def test_a_request_that_waits_in_the_queue_keeps_its_deadline(front):
    f = await front(max_inflight=1, request_timeout_s=0.3)
    f.decode[0].script = failing("hang")
    statuses = await asyncio.gather(*(f.ask() for _ in range(2)))
    assert [status for status, _, _ in statuses] == [504, 504]


async def test_nothing_is_left_over_after_many_different_ends(front):
    f = await front(prefill=2, decode=2, max_attempts=2, request_timeout_s=0.3, breaker_failures=99)
    ways: list[Any] = [failing(way) for way in ("400", "500", "rst", "cut", "hang")]
    for number in range(20):
        f.prefill[number % 2].script = ways[number % 5]
        f.decode[number % 2].script = ways[(number // 2) % 5]
        await asyncio.gather(*(f.ask() for _ in range(5)))
    await f.idle()
    await until(lambda: not f.router.dispatcher.admission.inflight)
    assert [(worker.requests, worker.tokens) for worker in f.router.registry] == [(0, 0)] * 4
    assert f.router.inference.idle.is_set()

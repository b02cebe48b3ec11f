"""How requests end: refused, failed, aborted, timed out, left by the client."""

from __future__ import annotations

import asyncio
import io
import json
import random
import time
from typing import Any

import pytest

from pd_worker.api.rooms import sample_room
from pd_worker.messages import (
    AbortRequest,
    Bootstrap,
    Finish,
    FlushCache,
    GenerateRequest,
    Output,
    RejectRoom,
)
from tests.worker.api.conftest import StartWorker, Worker, parse_events, until
from tests.worker.api.scripted import refuse, say, silent

ROOM = {"bootstrap_host": "p", "bootstrap_port": 8998, "bootstrap_room": 5}
USER = [{"role": "user", "content": "hello"}]
ENDPOINTS = [
    pytest.param("/v1/completions", {"prompt": "hello"}, id="completions"),
    pytest.param("/v1/chat/completions", {"messages": USER}, id="chat"),
    pytest.param("/generate", {"text": "hello"}, id="generate"),
]


def bad_bodies(count: int) -> list[tuple[str, bytes]]:
    """Bodies that are wrong in one or more ways, for each endpoint."""

    draw = random.Random(7)
    wrong: list[Any] = [{}, [], "x", -5, 1e308, True, [[]], [None], {"a": 1}, 2**70, [-1], [10**9]]
    openai_fields = [
        "max_tokens", "n", "stop", "seed", "temperature", "top_p", "top_k", "min_p", "logit_bias",
        "stop_token_ids", "response_format", "stream_options", "repetition_penalty", "regex",
        "ignore_eos", "bootstrap_room", "logprobs", "min_tokens", "stream",
    ]  # fmt: skip
    values = {
        "max_tokens": [-1, 10**9, "7", 1.5],
        "n": [0, 129, -1, "2"],
        "stop": [[""], ["x"] * 65, [1], 3],
        "seed": [2**63, "x", 1.5, 10**400],
        "temperature": [-1, 101, "hot"],
        "top_p": [0, 1.5, -1],
        "top_k": [-2, "x"],
        "min_p": [-0.1, 2],
        "logit_bias": [{"400": 1}, {"-1": 1}, {"x": 1}, {"5": 101}, {"5": "x"}],
        "stop_token_ids": [[400], [-1], ["x"]],
        "response_format": [
            {"type": "x"},
            {"type": "json_schema"},
            {},
            {"type": "json_schema", "json_schema": {"schema": {"type": "foo"}}},
        ],
        "stream_options": [{"include_usage": "x"}, []],
        "repetition_penalty": [0, -1],
        "regex": ["a[b", "(", 3],
        "ignore_eos": ["x", 1],
        "bootstrap_room": [5, "x", 0],
        "logprobs": [-1, 10**6, "x"],
        "min_tokens": [-1, 10**6],
        "stream": ["x", 3],
    }  # fmt: skip
    prompts = [{}, 3, "", [], [[]], [400], [-1], [1, "a"], [None], [1.5], None, [[40], []], [True]]
    bodies: list[tuple[str, bytes]] = [
        ("/v1/completions", raw)
        for raw in (b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"prompt":"\\ud800"}', b"[" * 9999,
                    b'{"prompt":NaN}', b'{"prompt":"a","prompt":}')
    ]  # fmt: skip
    while len(bodies) < count:
        path = draw.choice(["/v1/completions", "/v1/chat/completions"])
        body: dict[str, Any] = (
            {"prompt": "hello"} if path.endswith("/v1/completions") else {"messages": USER}
        )
        if draw.random() < 0.25:
            bad = draw.choice(prompts)
            body = {"prompt": bad} if "prompt" in body else {"messages": bad}
        else:
            name = draw.choice(openai_fields)
            if name == "logprobs" and "messages" in body:
                continue
            body[name] = draw.choice(values[name])
            if draw.random() < 0.5:
                body[draw.choice(openai_fields)] = draw.choice(wrong)
        bodies.append((path, json.dumps(body).encode()))
    return bodies


async def test_300_bad_bodies_are_all_4xx_and_none_reaches_the_scheduler(worker: Worker) -> None:
    for path, body in bad_bodies(300):
        status, reply = await worker.post(path, body)
        assert 400 <= status < 500, (path, body[:200], reply)
        assert reply["error"]["type"] == "invalid_request_error"
        assert reply["error"]["message"]
    assert worker.scheduler.seen == []
    status, _ = await worker.post("/v1/completions", {"prompt": "hello"})
    assert status == 200


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": ""}, "prompt"),
        ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
        ("/v1/completions", {"prompt": "a", "n": 1, "best_of": 2}, "best_of"),
        ("/v1/completions", {"prompt": "a", "max_tokens": "7"}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 999}, "max_tokens"),
        ("/v1/completions", {"prompt": "a", "logit_bias": {"400": 1}}, "logit_bias"),
        ("/v1/completions", {"prompt": "a", "rid": "x\ny"}, "rid"),
        ("/v1/completions", {"prompt": "a", "regex": "("}, "regex"),
        ("/v1/completions", {"prompt": "a", "regex": "a", "ebnf": 'root ::= "a"'}, "ebnf"),
        ("/v1/completions", {"prompt": "a"} | ROOM, "bootstrap_room"),
        ("/v1/completions", {"prompt": ["a"] * 257}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 200, "n": 128}, "n"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": [{"role": 3}]}, "messages[0].role"),
        ("/v1/chat/completions", {"messages": USER, "top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"messages": USER, "tool_choice": "required"}, "tool_choice"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
        ),
        ("/generate", {}, "text"),
        ("/generate", {"text": "a", "input_ids": [1]}, "text"),
        ("/generate", {"text": "a", "sampling_params": {"n": 0}}, "n"),
        ("/generate", {"text": "a", "sampling_params": {"top_p": 7}}, "top_p"),
        ("/detokenize", {"tokens": [400]}, "tokens"),
        ("/tokenize", {}, "prompt"),
        ("/abort_request", {}, "rid"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_refusal_names_the_field(
    worker: Worker, path: str, body: dict[str, Any], param: str
) -> None:
    status, reply = await worker.post(path, body)
    assert (status, reply["error"]["param"]) == (400, param), reply


async def test_a_body_over_the_limit_is_413(worker: Worker) -> None:
    status, reply = await worker.post("/v1/completions", io.BytesIO(b"x" * (17 << 20)))
    assert (status, reply["error"]["type"]) == (413, "invalid_request_error")


@pytest.mark.parametrize("path", ["/nowhere", "/v1/embeddings"])
async def test_unknown_paths_are_404_error_objects(worker: Worker, path: str) -> None:
    status, reply = await worker.post(path, {})
    assert (status, reply["error"]["code"]) == (404, "not_found")


async def test_a_wrong_method_is_405_and_names_the_right_one(worker: Worker) -> None:
    async with worker.session.get(f"{worker.url}/generate") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")


async def test_a_huge_grammar_is_refused_quickly(worker: Worker) -> None:
    for field, value in (("regex", "a" * 70_000), ("ebnf", 'root ::= "a"' + "a" * 70_000)):
        status, reply = await worker.post("/v1/completions", {"prompt": "a", field: value})
        assert (status, reply["error"]["param"]) == (400, field)


async def test_an_http2_preface_is_refused_and_the_worker_lives(worker: Worker) -> None:
    host, port = worker.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert answer.startswith(b"HTTP/1.") or not answer
    assert (await worker.get("/health"))[0] == 200


# -- errors of the scheduler


@pytest.mark.parametrize(("status", "code"), [(400, "too_long"), (429, "queue_full"), (500, "bug")])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_an_error_before_the_first_output_is_a_status(
    worker: Worker, path: str, body: dict[str, Any], stream: bool, status: int, code: str
) -> None:
    worker.scheduler.script = refuse(status, code)
    got, reply = await worker.post(path, body | {"stream": stream})
    assert (got, reply["error"]["code"]) == (status, code)


def two_tokens_then_fail(request: GenerateRequest) -> list[Output]:
    good = say(request, [40, 41, 42])[:2]
    return [*good, Output(rid=request.rid, finish=Finish("error", None, 500, "broke", "broken"))]


@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_an_error_after_the_first_output_is_an_event_and_one_done(
    worker: Worker, path: str, body: dict[str, Any]
) -> None:
    worker.scheduler.script = two_tokens_then_fail
    worker.scheduler.pause_s = 0.01
    *chunks, error, done = await worker.events(path, body | {"n": 2})
    assert done == "[DONE]"
    assert error["error"] == {
        "message": "broke",
        "type": "server_error",
        "param": None,
        "code": "broken",
    }
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk.get("choices", [])]
    assert not any(reasons)


async def test_when_one_sample_fails_the_others_are_aborted(worker: Worker) -> None:
    def first_fails(request: GenerateRequest) -> list[Output]:
        return refuse(500, "bug")(request) if request.rid.endswith(".0") else []

    worker.scheduler.script = first_fails
    status, _ = await worker.post("/v1/completions", {"prompt": "a", "n": 3, "rid": "r"})
    assert status == 500
    await until(lambda: len(worker.scheduler.got(AbortRequest)) == 2)
    assert {message.rid for message in worker.scheduler.got(AbortRequest)} == {"r.1", "r.2"}


async def test_a_request_over_its_time_is_504_and_aborted(start_worker: StartWorker) -> None:
    async with start_worker(script=silent, request_timeout_s=0.5) as worker:
        status, reply = await worker.post("/v1/completions", {"prompt": "a"})
        assert (status, reply["error"]["code"]) == (504, "timeout")
        *_, error, done = await worker.events("/v1/completions", {"prompt": "a"})
        assert (error["error"]["code"], done) == ("timeout", "[DONE]")
        await until(lambda: len(worker.scheduler.got(AbortRequest)) == 2)


# -- clients that leave


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("outputs", [0, 1, 5])
async def test_a_client_that_leaves_stops_the_work_at_once(
    worker: Worker, stream: bool, outputs: int
) -> None:
    worker.scheduler.pause_s = 0.01
    tokens = [40] * 200
    worker.scheduler.script = lambda request: say(request, tokens) if outputs else []
    body = {"prompt": "a", "max_tokens": 200, "stream": stream}
    call = asyncio.create_task(worker.post("/v1/completions", body))
    await until(lambda: worker.scheduler.running and worker.scheduler.sent_tokens >= outputs)
    call.cancel()
    left = time.monotonic()
    await until(lambda: worker.scheduler.got(AbortRequest))
    assert time.monotonic() - left < 1
    await until(lambda: worker.context.engine.num_samples == 0)
    assert worker.scheduler.sent_tokens < outputs + 20


async def test_a_client_that_does_not_read_is_cut_off_at_the_deadline(
    start_worker: StartWorker,
) -> None:
    flood = [40] * 200
    async with start_worker(request_timeout_s=1.0) as worker:
        worker.scheduler.script = lambda request: say(request, flood)
        body = {"prompt": ["a"] * 64, "max_tokens": 200, "stream": True, "logprobs": 128}

        data = json.dumps(body).encode()
        host, port = worker.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=1024)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        await until(lambda: worker.context.engine.num_samples == 64)
        await until(lambda: worker.context.engine.num_samples == 0, timeout_s=10)
        writer.close()


# -- streams


async def test_a_waiting_stream_gets_headers_and_comments(start_worker: StartWorker) -> None:
    async with start_worker(script=silent, sse_keepalive_s=0.05) as worker:
        began = time.monotonic()
        async with worker.session.post(
            f"{worker.url}/v1/completions", json={"prompt": "a", "stream": True}
        ) as response:
            assert time.monotonic() - began < 1
            assert response.headers["Content-Type"].startswith("text/event-stream")
            assert response.headers["Cache-Control"] == "no-cache"
            assert response.headers["X-Accel-Buffering"] == "no"
            assert await response.content.readexactly(9) == b":\n\n" * 3


ENDINGS = {
    "length": lambda request: say(request, [40] * 500),
    "stop": lambda request: say(request, [40, 41]),
    "empty": lambda request: say(request, []),
    "abort": lambda request: [Output(rid=request.rid, finish=Finish("abort"))],
    "error": two_tokens_then_fail,
}


async def test_1000_streams_end_with_exactly_one_done(worker: Worker) -> None:
    names = list(ENDINGS)

    def any_ending(request: GenerateRequest) -> list[Output]:
        return ENDINGS[names[len(request.input_ids) % len(names)]](request)

    worker.scheduler.script = any_ending
    paths = ("/v1/completions", "/v1/chat/completions", "/generate")

    async def one(number: int) -> None:
        path = paths[number % 3]
        prompt = "a" * (1 + number % 7)
        body = {"prompt": prompt, "text": prompt, "max_tokens": 4, "stream": True}
        body["messages"] = [{"role": "user", "content": prompt}]
        async with worker.session.post(worker.url + path, json=body) as response:
            if response.status == 200:
                events = parse_events(await response.read())
                assert events[-1] == "[DONE]"
                assert events.count("[DONE]") == 1

    for start in range(0, 1000, 50):
        await asyncio.gather(*(one(number) for number in range(start, start + 50)))


async def test_300_streams_at_once(worker: Worker) -> None:
    worker.scheduler.pause_s = 0.02
    worker.scheduler.script = lambda request: say(request, [40] * 5)
    async with asyncio.TaskGroup() as group:
        calls = [
            group.create_task(worker.events("/v1/completions", {"prompt": "a"})) for _ in range(300)
        ]
    assert all(call.result()[-1] == "[DONE]" for call in calls)


# -- PD roles


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(("path", "body"), ENDPOINTS)
async def test_pd_roles_take_requests_with_rooms_only(
    start_worker: StartWorker, role: Any, path: str, body: dict[str, Any]
) -> None:
    async with start_worker(role) as worker:
        status, reply = await worker.post(path, body)
        assert (status, reply["error"]["param"]) == (400, "bootstrap_room")
        assert "router" in reply["error"]["message"]
        status, _ = await worker.post(path, body | ROOM)
        assert status == 200
        assert worker.scheduler.got(GenerateRequest)[0].bootstrap == Bootstrap("p", 8998, 5)


async def test_a_missing_port_is_the_workers_own(start_worker: StartWorker) -> None:
    async with start_worker("decode") as worker:
        body = {"prompt": "a", "bootstrap_host": "p", "bootstrap_port": None, "bootstrap_room": 5}
        await worker.post("/v1/completions", body)
        assert worker.scheduler.got(GenerateRequest)[0].bootstrap == Bootstrap("p", 8998, 5)


async def test_both_legs_give_each_sample_the_same_room(start_worker: StartWorker) -> None:
    body = {"prompt": ["a", "b"], "n": 2} | ROOM
    rooms = []
    for role in ("prefill", "decode"):
        async with start_worker(role) as worker:
            await worker.post("/v1/completions", body)
            seen = worker.scheduler.got(GenerateRequest)
            rooms.append([request.bootstrap.room for request in seen])
    assert rooms[0] == rooms[1] == [sample_room(5, index) for index in range(4)]


@pytest.mark.parametrize(
    "change", [{"max_tokens": 999}, {"prompt": ""}, {"top_p": 9}, {"logit_bias": []}], ids=str
)
async def test_a_refused_leg_is_told_to_the_scheduler(
    start_worker: StartWorker, change: dict[str, Any]
) -> None:
    async with start_worker("decode") as worker:
        status, _ = await worker.post("/v1/completions", {"prompt": "a", "n": 2} | ROOM | change)
        assert status == 400
        await until(lambda: len(worker.scheduler.seen) == 2)
        refused = worker.scheduler.got(RejectRoom)
        assert [message.bootstrap.room for message in refused] == [5, sample_room(5, 1)]


async def test_a_refusal_never_touches_a_room_in_use(start_worker: StartWorker) -> None:
    async with start_worker("decode", silent) as worker:
        running = asyncio.create_task(worker.post("/v1/completions", {"prompt": "a"} | ROOM))
        await until(lambda: worker.scheduler.running)
        status, _ = await worker.post("/v1/completions", {"prompt": "a", "top_p": 9} | ROOM)
        assert status == 400
        await worker.post("/flush_cache", {})
        await until(lambda: worker.scheduler.got(FlushCache))
        running.cancel()
        await until(lambda: worker.context.engine.num_samples == 0)
        assert worker.scheduler.got(RejectRoom) == []


async def test_prefill_needs_room_for_one_token_only(start_worker: StartWorker) -> None:
    async with start_worker("prefill") as worker:
        status, _ = await worker.post("/v1/completions", {"prompt": "a", "max_tokens": 999} | ROOM)
        assert status == 200
        assert worker.scheduler.got(GenerateRequest)[0].sampling.max_new_tokens == 999

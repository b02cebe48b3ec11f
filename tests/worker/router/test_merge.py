"""What the answer takes from prefill's: prompt log-probabilities and the timeline."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from aiohttp import web

from pd_worker.router.merge import PrefillPart
from tests.worker.router.conftest import DONE, Script, Stub, open_stream

PROMPT = [None, -1.0, -2.0]


def sse(*values: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


def says(*values: Any) -> Script:
    """A worker that answers with these values: the last one whole, or all as events."""

    async def script(stub: Stub, request: web.Request) -> web.StreamResponse:
        if not stub.calls[-1].body.get("stream"):
            await stub.meet()
            return web.json_response(values[-1])
        response = await open_stream(request)
        await stub.meet()
        await response.write(sse(*values) + DONE)
        return response

    return script


def choice(logprobs: list[float | None], index: int = 0, **extra: Any) -> dict[str, Any]:
    tops = [None if value is None else {"t": value} for value in logprobs]
    block = {"tokens": ["t"] * len(tops), "token_logprobs": logprobs, "top_logprobs": tops}
    return {"index": index, "text": "t", "logprobs": block, **extra}


def events(data: bytes) -> list[Any]:
    return [json.loads(event[6:]) for event in data.split(b"\n\n")[:-2]]


async def test_echoed_prompt_logprobs_come_from_prefill(front):
    f = await front()
    f.prefill[0].script = says({"choices": [choice([*PROMPT, -3.0])]})
    f.decode[0].script = says({"choices": [choice([None, None, None, -3.0, -4.0])]})
    _, _, answer = await f.ask("/v1/completions", prompt="p", echo=True, logprobs=1)
    block = answer["choices"][0]["logprobs"]
    assert block["token_logprobs"] == [None, -1.0, -2.0, -3.0, -4.0]
    assert block["top_logprobs"] == [None, *({"t": value} for value in (-1.0, -2.0, -3.0, -4.0))]


async def test_only_a_choices_first_chunk_gets_prompt_logprobs(front):
    f = await front()
    f.prefill[0].script = says(
        {"choices": [choice([*PROMPT, -3.0])]}, {"choices": [choice([None, -8.0, -9.0], index=1)]}
    )
    f.decode[0].script = says(
        {"choices": [choice([None] * 3)]},
        {"choices": [choice([None] * 2 + [-9.0], index=1)]},
        {"choices": [choice([None, -4.0])]},
    )
    async with f.session.post(
        "/v1/completions", json={"prompt": ["p", "q"], "echo": True, "logprobs": 0, "stream": True}
    ) as response:
        chunks = events(await response.read())
    found = [chunk["choices"][0]["logprobs"]["token_logprobs"] for chunk in chunks]
    assert found == [PROMPT, [None, -8.0, -9.0], [None, -4.0]]


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_native_input_logprobs_come_from_prefill(front, streams):
    f = await front()
    known = [[None, 1, None], [-1.0, 2, None]]
    prefill = {"text": "a", "meta_info": {"input_token_logprobs": known, "id": "p"}}
    parts = [
        {"text": text, "meta_info": {"input_token_logprobs": [], "id": "d"}} for text in ("a", "ab")
    ]
    f.prefill[0].script, f.decode[0].script = says(prefill), says(*parts)
    body = {"text": "p", "return_logprob": True, "logprob_start_len": 0, "stream": streams}
    async with f.session.post("/generate", json=body) as response:
        data = await response.read()
    answers = events(data) if streams else [json.loads(data)]
    for answer in answers:
        assert answer["meta_info"] == {"input_token_logprobs": known, "id": "d"}
    assert answers[-1]["text"] == "ab"


async def test_native_batches_are_merged_item_by_item(front):
    f = await front()
    lists = [[[None, 1, None]], [[None, 2, None]]]
    metas = [{"meta_info": {"input_token_logprobs": one}} for one in lists]
    f.prefill[0].script = says(metas)
    f.decode[0].script = says([{"meta_info": {"input_token_logprobs": []}} for _ in lists])
    _, _, answer = await f.ask("/generate", text=["p", "q"], return_logprob=True)
    assert answer == metas


def stage(name: str, start: float) -> dict[str, Any]:
    return {"name": name, "start": start, "end": start + 1, "detail": ""}


@pytest.mark.parametrize("by", ["field", "header"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_the_timeline_joins_both_legs_and_the_router(front, streams, by):
    f = await front()
    f.prefill[0].script = says({"choices": [], "pdserve": {"stages": [stage("prefill", 2)]}})
    stages = [stage("prealloc", 1), stage("decode", 3)]
    f.decode[0].script = says(
        {"choices": [{"index": 0, "text": "a"}]}, {"choices": [], "pdserve": {"stages": stages}}
    )
    body = {"prompt": "p", "stream": streams} | (
        {"pdserve_timeline": True} if by == "field" else {}
    )
    headers = {"X-Pdserve-Timeline": "1"} if by == "header" else {}
    async with f.session.post("/v1/completions", json=body, headers=headers) as response:
        data = await response.read()
    answer = (events(data) if streams else [json.loads(data)])[-1]
    found = [(stage["leg"], stage["name"]) for stage in answer["pdserve"]["stages"]]
    assert found == [
        ("decode", "prealloc"),
        ("prefill", "prefill"),
        ("decode", "decode"),
        ("router", "dispatch"),
    ]
    if by == "header":
        assert f.decode[0].calls[0].headers["X-Pdserve-Timeline"] == "true"


@pytest.mark.parametrize(
    "body",
    [b"", b"no json", b"[1, null]", b'{"choices": 5}', b'{"choices": [{"logprobs": 1}]}', DONE],
)
def test_an_odd_prefill_body_adds_nothing(body):
    part = PrefillPart.read(body)
    answer = {"choices": [choice([None, -1.0])]}
    assert part.complete(answer) == {"choices": [choice([None, -1.0])]}
    assert part.stages == []


async def test_one_log_line_tells_all_about_a_request(front, caplog):
    f = await front()
    caplog.set_level("INFO", logger="pd_worker.router.inference")
    await f.ask()
    f.prefill[0].script = lambda stub, request: refuse()
    await f.ask()
    good, bad = [record.getMessage() for record in caplog.records]
    pair = re.escape(f"{f.prefill[0].url}|{f.decode[0].url}")
    assert re.fullmatch(
        rf"id=\w{{32}} path=/v1/chat/completions pair={pair} attempts=1 status=200 "
        r"ttft_ms=\d+ total_ms=\d+ reason=''",
        good,
    )
    assert "status=418" in bad
    assert f"reason='http_418 at {f.prefill[0].url}'" in bad


async def refuse() -> web.Response:
    return web.json_response({}, status=418)

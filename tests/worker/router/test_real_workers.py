"""The router in front of real API processes: a pair answers what one unified worker answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import msgspec
import openai
import pytest

from pd_worker.messages import AbortRequest, Finish, GenerateRequest, Output, Stage
from pd_worker.router.app import ROUTER, make_app
from pd_worker.router.options import RouterOptions
from tests.worker.api.conftest import model_dir, start_worker, tokenizer  # noqa: F401
from tests.worker.api.scripted import reverse, silent
from tests.worker.router.conftest import served, until


def first_token(request: GenerateRequest) -> list[Output]:
    """Prefill: the first of the tokens, and what is known of the prompt."""
    output = reverse(request)[0]
    stages = [Stage("prefill", 0.5, 0.9)]
    return [msgspec.structs.replace(output, finish=Finish("length"), stages=stages)]


def without_prompt(request: GenerateRequest) -> list[Output]:
    """Decode: all tokens, nothing about the prompt."""
    return [
        msgspec.structs.replace(output, prompt_logprobs=[], prompt_top_logprobs=[])
        for output in reverse(request)
    ]


class Fleet:
    """Two routers: in front of a pair, and in front of a unified worker."""

    def __init__(self, workers: dict[str, Any], pair: str, unified: str) -> None:
        self.workers, self.pair, self.unified = workers, pair, unified


@pytest.fixture
async def fleet(start_worker) -> AsyncIterator[Fleet]:  # noqa: F811
    scripts = {"prefill": first_token, "decode": without_prompt, "unified": reverse}
    async with AsyncExitStack() as stack:
        workers = {
            role: await stack.enter_async_context(start_worker(role, script))
            for role, script in scripts.items()
        }
        url = {role: ((worker.url,),) for role, worker in workers.items()}
        urls = []
        for options in (
            RouterOptions(prefill=url["prefill"], decode=url["decode"]),
            RouterOptions(worker=url["unified"]),
        ):
            address, runner = await stack.enter_async_context(served(make_app(options)))
            registry = runner.app[ROUTER].registry
            await until(lambda registry=registry: registry and all(w.usable for w in registry))
            urls.append(address)
        yield Fleet(workers, *urls)


async def post(url: str, path: str, body: dict[str, Any]) -> Any:
    """The JSON answer, or the payloads of a stream."""
    async with aiohttp.ClientSession(url) as session, session.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        if not body.get("stream"):
            return await response.json()
        events = (await response.read()).split(b"\n\n")
    return [json.loads(e[6:]) for e in events if e.startswith(b"data: {")]


def comparable(value: Any) -> Any:
    """Without ids and times."""
    if isinstance(value, dict):
        dropped = ("id", "created", "e2e_latency")
        return {k: comparable(v) for k, v in value.items() if k not in dropped}
    return [comparable(item) for item in value] if isinstance(value, list) else value


def joined(chunks: list[Any]) -> Any:
    """A stream's content whatever its cuts: by choice, text and logprobs one after another."""
    found: dict[int, dict[str, Any]] = {}
    for choice in (choice for chunk in chunks for choice in chunk.get("choices", [])):
        known = found.setdefault(choice["index"], {"text": "", "values": [], "finish": None})
        known["text"] += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        logprobs = choice.get("logprobs") or {}
        known["values"] += logprobs.get("token_logprobs") or logprobs.get("content") or []
        known["finish"] = choice.get("finish_reason") or known["finish"]
    return found


CASES = [
    pytest.param(
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "hello"}], "logprobs": True, "top_logprobs": 2},
        id="chat",
    ),
    pytest.param("/v1/completions", {"prompt": "hello world", "n": 2}, id="two samples"),
    pytest.param("/v1/completions", {"prompt": ["hello", "you"], "n": 2}, id="two prompts"),
    pytest.param(
        "/v1/completions", {"prompt": "hello world", "echo": True, "logprobs": 2}, id="echo"
    ),
    pytest.param(
        "/v1/completions",
        {"prompt": ["hello world", "how are you"], "echo": True, "logprobs": 0, "n": 2},
        id="echo of a batch",
    ),
]
NATIVE = [
    pytest.param({"text": "hello world"}, id="text"),
    pytest.param({"text": ["hello", "world"]}, id="batch"),
    pytest.param(
        {
            "text": "hello you",
            "return_logprob": True,
            "logprob_start_len": 0,
            "top_logprobs_num": 1,
        },
        id="logprobs",
    ),
    pytest.param(
        {"text": ["hello you", "the fox"], "return_logprob": True, "logprob_start_len": 0},
        id="logprobs of a batch",
    ),
]


@pytest.mark.parametrize(("path", "body"), CASES)
async def test_a_pair_answers_like_a_unified_worker(fleet, path, body):
    body = {"model": "tiny", "max_tokens": 5, **body}
    pair, unified = [await post(url, path, body) for url in (fleet.pair, fleet.unified)]
    assert comparable(pair) == comparable(unified)


@pytest.mark.parametrize(("path", "body"), CASES)
async def test_a_pair_streams_like_a_unified_worker(fleet, path, body):
    body = {"model": "tiny", "max_tokens": 5, "stream": True, **body}
    pair, unified = [await post(url, path, body) for url in (fleet.pair, fleet.unified)]
    assert joined(pair) == joined(unified)


@pytest.mark.parametrize("body", NATIVE)
async def test_a_pair_answers_natively_like_a_unified_worker(fleet, body):
    body = {"sampling_params": {"max_new_tokens": 5}, **body}
    pair, unified = [await post(url, "/generate", body) for url in (fleet.pair, fleet.unified)]
    assert comparable(pair) == comparable(unified)


@pytest.mark.parametrize("body", [NATIVE[0], NATIVE[2]])
async def test_a_pairs_native_stream_ends_like_a_unified_workers(fleet, body):
    body = {"sampling_params": {"max_new_tokens": 5}, "stream": True, **body}
    pair, unified = [await post(url, "/generate", body) for url in (fleet.pair, fleet.unified)]
    assert comparable(pair[-1]) == comparable(unified[-1])


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
async def test_the_timeline_has_both_legs(fleet, streams):
    body = {"model": "tiny", "prompt": "hello", "pdserve_timeline": True, "stream": streams}
    answer = await post(fleet.pair, "/v1/completions", body)
    stages = (answer[-1] if streams else answer)["pdserve"]["stages"]
    assert [(s["leg"], s["name"]) for s in stages] == [
        ("prefill", "prefill"),
        ("decode", "decode"),
        ("router", "dispatch"),
    ]


async def test_a_wrong_request_gets_the_workers_error(fleet):
    async with openai.AsyncOpenAI(base_url=f"{fleet.pair}/v1", api_key="k", max_retries=0) as c:
        with pytest.raises(openai.BadRequestError) as caught:
            await c.chat.completions.create(model="tiny", messages=[], stream=True)
    assert caught.value.param == "messages"


async def test_a_client_that_leaves_ends_the_request_in_both_schedulers(fleet):
    schedulers = [fleet.workers[role].scheduler for role in ("prefill", "decode")]
    for scheduler in schedulers:
        scheduler.script = silent
    body = {"model": "tiny", "prompt": "hello", "stream": True}
    task = asyncio.create_task(post(fleet.pair, "/v1/completions", body))
    await until(lambda: all(scheduler.seen for scheduler in schedulers))
    task.cancel()
    await until(
        lambda: all(any(isinstance(m, AbortRequest) for m in s.seen) for s in schedulers), 1.0
    )


async def test_an_abort_by_rid_reaches_both_schedulers_and_ends_the_answer(fleet):
    for role in ("prefill", "decode"):
        fleet.workers[role].scheduler.script = silent
    body = {"text": "hello", "rid": "mine"}
    task = asyncio.create_task(post(fleet.pair, "/generate", body))
    schedulers = [fleet.workers[role].scheduler for role in ("prefill", "decode")]
    await until(lambda: all(scheduler.seen for scheduler in schedulers))
    assert (await post(fleet.pair, "/abort_request", {"rid": "mine"}))["failed"] == []
    answer = await asyncio.wait_for(task, 3)
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"

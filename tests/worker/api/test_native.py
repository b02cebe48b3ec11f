"""SGLang's native API on a real port."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from pd_worker.messages import AbortRequest, FlushCache, GenerateRequest
from tests.worker.api.conftest import StartWorker, Worker, until
from tests.worker.api.scripted import say, silent

BODY = {"input_ids": [40, 41, 42], "sampling_params": {"max_new_tokens": 8}}


async def test_generate_answers_one_object(worker: Worker) -> None:
    status, reply = await worker.post("/generate", BODY | {"rid": "mine"})
    meta = reply["meta_info"]
    assert status == 200
    assert reply["text"] == worker.context.tokenizer.decode([42, 41, 40])
    assert reply["output_ids"] == [42, 41, 40]
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "stop", "matched": None}
    assert (meta["prompt_tokens"], meta["completion_tokens"], meta["cached_tokens"]) == (3, 3, 3)


async def test_length_names_the_length(worker: Worker) -> None:
    _, reply = await worker.post("/generate", BODY | {"sampling_params": {"max_new_tokens": 2}})
    assert reply["meta_info"]["finish_reason"] == {"type": "length", "length": 2}


async def test_streamed_text_and_counts_are_cumulative(worker: Worker) -> None:
    worker.scheduler.pause_s = 0.005
    ids = worker.context.tokenizer.encode("hello world")
    worker.scheduler.script = lambda request: say(request, ids)
    *events, done = await worker.events("/generate", {"text": "x"})
    texts = [event["text"] for event in events]
    counts = [event["meta_info"]["completion_tokens"] for event in events]
    assert done == "[DONE]"
    assert all(later.startswith(text) for text, later in pairwise(texts))
    assert texts[-1] == "hello world"
    assert counts == list(range(1, len(ids) + 1))
    assert [event["output_ids"] for event in events] == [ids[:count] for count in counts]


@pytest.mark.parametrize(
    ("body", "indices"),
    [
        pytest.param({"text": ["a", "b"]}, [0, 1], id="texts"),
        pytest.param({"input_ids": [[40], [41]]}, [0, 1], id="lists of ids"),
        pytest.param({"input_ids": [[40]]}, [0], id="list of one"),
        pytest.param({"text": "a", "sampling_params": {"n": 3}}, [0, 1, 2], id="samples"),
    ],
)
async def test_a_batch_is_answered_by_a_list(
    worker: Worker, body: dict[str, Any], indices: list[int]
) -> None:
    _, reply = await worker.post("/generate", body)
    events = await worker.events("/generate", body)
    assert [sample["index"] for sample in reply] == indices
    assert sorted({event["index"] for event in events[:-1]}) == indices


@pytest.mark.parametrize(("start", "positions"), [(0, 3), (1, 2), (-1, 0), (None, 0)])
async def test_logprobs_of_prompt_and_output(
    worker: Worker, start: int | None, positions: int
) -> None:
    fields = {"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": start}
    _, reply = await worker.post("/generate", BODY | fields | {"return_text_in_logprobs": True})
    meta = reply["meta_info"]
    assert meta["output_token_logprobs"][0] == [-0.5, 42, worker.context.tokenizer.decode([42])]
    assert [len(tops) for tops in meta["output_top_logprobs"]] == [2, 2, 2]
    assert len(meta["input_token_logprobs"]) == positions
    assert len(meta["input_top_logprobs"]) == positions
    if start == 0:
        assert meta["input_token_logprobs"][0][:2] == [None, 40]
        assert meta["input_top_logprobs"][0] is None


async def test_decode_leaves_prompt_logprobs_to_prefill(start_worker: StartWorker) -> None:
    body = BODY | {"return_logprob": True, "logprob_start_len": 0}
    async with start_worker("decode") as worker:
        _, reply = await worker.post(
            "/generate", body | {"bootstrap_host": "p", "bootstrap_room": "5"}
        )
    assert reply["meta_info"]["input_token_logprobs"] == []
    assert worker.scheduler.seen[0].prompt_logprobs is False


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_timeline_is_given_when_asked(worker: Worker, stream: bool) -> None:
    headers = {"X-Pdserve-Timeline": "true"}
    async with worker.session.post(
        f"{worker.url}/generate", json=BODY | {"stream": stream}, headers=headers
    ) as response:
        text = await response.text()
    assert text.count('"pdserve":{"stages":[{"name":"decode"') == 1


async def test_abort_request_ends_exactly_the_named_one(worker: Worker) -> None:
    worker.scheduler.script = silent
    calls = [
        asyncio.create_task(worker.post("/generate", BODY | {"rid": rid})) for rid in ("a", "ab")
    ]
    await until(lambda: len(worker.scheduler.running) == 2)
    assert await worker.post("/abort_request", {"rid": "a"}) == (200, {"rid": "a", "found": True})
    status, reply = await calls[0]
    assert (status, reply["meta_info"]["finish_reason"]["type"]) == (200, "abort")
    await until(lambda: worker.scheduler.got(AbortRequest) == [AbortRequest("a")])
    assert not calls[1].done()
    await worker.post("/abort_request", {"rid": "ab"})
    await calls[1]


async def test_abort_request_of_an_unknown_name_changes_nothing(worker: Worker) -> None:
    _, reply = await worker.post("/abort_request", {"rid": "nobody"})
    assert reply == {"rid": "nobody", "found": False}
    assert worker.scheduler.seen == []


async def test_a_name_in_use_is_refused(worker: Worker) -> None:
    worker.scheduler.script = silent
    running = asyncio.create_task(worker.post("/generate", BODY | {"rid": "a"}))
    await until(lambda: worker.scheduler.running)
    status, reply = await worker.post("/generate", BODY | {"rid": "a"})
    assert (status, reply["error"]["param"]) == (400, "rid")
    assert len(worker.scheduler.got(GenerateRequest)) == 1
    await worker.post("/abort_request", {"rid": "a"})
    await running


async def test_requests_without_a_name_get_distinct_ones(worker: Worker) -> None:
    for _ in range(50):
        async with worker.session.post(
            f"{worker.url}/generate", json=BODY, headers={"X-Request-ID": "same"}
        ) as response:
            assert response.status == 200
    names = {request.rid for request in worker.scheduler.got(GenerateRequest)}
    assert len(names) == 50
    assert all(name.startswith("same-") for name in names)


async def test_flush_cache_reaches_the_scheduler(worker: Worker) -> None:
    status, _ = await worker.post("/flush_cache", {})
    await until(lambda: worker.scheduler.seen == [FlushCache()])
    assert status == 200


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "hello world"},
        {"text": "hello world"},
        {"prompt": ["hello", "hello world"]},
        {"messages": [{"role": "user", "content": "hi"}]},
    ],
    ids=["prompt", "text", "list", "messages"],
)
async def test_tokenize_and_detokenize_are_inverse(worker: Worker, body: dict[str, Any]) -> None:
    _, reply = await worker.post("/tokenize", body)
    _, back = await worker.post(
        "/detokenize", {"tokens": reply["tokens"], "skip_special_tokens": False}
    )
    given = body.get("prompt") or body.get("text")
    expected = given or "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert back["text"] == back["prompt"] == expected
    assert reply["max_model_len"] == 256

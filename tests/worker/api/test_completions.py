"""POST /v1/completions on a real port."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from pd_worker.messages import AbortRequest, GenerateRequest
from tests.worker.api.conftest import StartWorker, Worker, until
from tests.worker.api.scripted import say

PATH = "/v1/completions"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        pytest.param("hello", ["hello"], id="string"),
        pytest.param(["hello", "world"], ["hello", "world"], id="strings"),
        pytest.param([40, 41], [[40, 41]], id="ids"),
        pytest.param([[40, 41], [42]], [[40, 41], [42]], id="lists of ids"),
    ],
)
async def test_every_form_of_prompt(worker: Worker, prompt: Any, prompts: list[Any]) -> None:
    status, reply = await worker.post(PATH, {"prompt": prompt})
    encode = worker.context.tokenizer.encode
    expected = [encode(one) if isinstance(one, str) else one for one in prompts]
    decode = worker.context.tokenizer.decode
    assert status == 200
    assert [message.input_ids for message in worker.scheduler.seen] == expected
    assert [choice["text"] for choice in reply["choices"]] == [
        decode(ids[::-1]) for ids in expected
    ]
    assert reply["usage"]["prompt_tokens"] == sum(map(len, expected))
    assert reply["usage"]["completion_tokens"] == sum(map(len, expected))


async def test_samples_are_numbered_prompt_by_prompt(worker: Worker) -> None:
    body = {"prompt": [[40], [50]], "n": 2, "seed": 1}
    _, reply = await worker.post(PATH, body)
    seen = [(message.input_ids, message.sampling.seed) for message in worker.scheduler.seen]
    assert seen == [([40], 1), ([40], 2), ([50], 1), ([50], 2)]
    assert [choice["index"] for choice in reply["choices"]] == [0, 1, 2, 3]
    assert reply["usage"]["prompt_tokens"] == 2


@pytest.mark.parametrize("num", [0, 2])
async def test_logprobs(worker: Worker, num: int) -> None:
    _, reply = await worker.post(PATH, {"prompt": [40, 41, 42], "logprobs": num})
    block = reply["choices"][0]["logprobs"]
    assert block["token_logprobs"] == [-0.5] * 3
    assert block["text_offset"] == [0, 1, 2]
    assert "".join(block["tokens"]) == reply["choices"][0]["text"]
    assert [len(tops) if tops else 0 for tops in block["top_logprobs"]] == [num] * 3


@pytest.mark.parametrize(
    ("role", "prompt_scores"),
    [("unified", [None, -1.0, -1.0]), ("prefill", [None, -1.0, -1.0]), ("decode", [None] * 3)],
)
async def test_echo_with_logprobs_has_one_position_for_each_prompt_token(
    start_worker: StartWorker, role: Any, prompt_scores: list[float | None]
) -> None:
    rooms = {} if role == "unified" else {"bootstrap_host": "p", "bootstrap_room": 5}
    body = {"prompt": [40, 41, 42], "echo": True, "logprobs": 1, "max_tokens": 1} | rooms
    async with start_worker(role) as worker:
        _, reply = await worker.post(PATH, body)
        first = (await worker.events(PATH, body | rooms))[0]["choices"][0]
    choice = reply["choices"][0]
    block = choice["logprobs"]
    assert worker.scheduler.seen[0].prompt_logprobs == (role != "decode")
    assert block["token_logprobs"] == [*prompt_scores, -0.5]
    assert [bool(tops) for tops in block["top_logprobs"][:3]] == [
        s is not None for s in prompt_scores
    ]
    assert "".join(block["tokens"]) == choice["text"]
    assert first["logprobs"]["token_logprobs"][:3] == prompt_scores


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_max_tokens_0_with_echo_is_the_prompt_only(worker: Worker, stream: bool) -> None:
    body = {"prompt": "hello world", "max_tokens": 0, "echo": True, "logprobs": 0}
    body["stream_options"] = {"include_usage": True}
    if stream:
        *chunks, usage, _ = await worker.events(PATH, body)
        text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
        reason = chunks[-1]["choices"][0]["finish_reason"]
    else:
        _, usage = await worker.post(PATH, body)
        text, reason = usage["choices"][0]["text"], usage["choices"][0]["finish_reason"]
    assert (text, reason, usage["usage"]["completion_tokens"]) == ("hello world", "length", 0)


async def test_a_stop_string_ends_the_sample_and_its_work(worker: Worker) -> None:
    ids = worker.context.tokenizer.encode("one stop two")
    worker.scheduler.script = lambda request: say(request, ids * 4)
    worker.scheduler.pause_s = 0.01
    _, reply = await worker.post(PATH, {"prompt": "x", "stop": [" stop"], "max_tokens": 99})
    request = worker.scheduler.seen[0]
    assert reply["choices"][0]["text"] == "one"
    assert reply["choices"][0]["finish_reason"] == "stop"
    used = worker.context.tokenizer.encode("one stop")
    assert reply["usage"]["completion_tokens"] == len(used)
    await until(lambda: worker.scheduler.got(AbortRequest) == [AbortRequest(request.rid)])


@pytest.mark.parametrize("body", [{}, {"stop": ["lo w"]}, {"n": 2}, {"echo": True}], ids=str)
async def test_streaming_gives_the_same_text_counts_and_reason(
    worker: Worker, body: dict[str, Any]
) -> None:
    ids = worker.context.tokenizer.encode("hello world 😀 ünd so")
    worker.scheduler.script = lambda request: say(request, ids)
    body = {"prompt": "x", "max_tokens": 40, "stream_options": {"include_usage": True}} | body
    _, whole = await worker.post(PATH, body)
    *chunks, usage, _ = await worker.events(PATH, body)
    for choice in whole["choices"]:
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in mine) == choice["text"]
        assert mine[-1]["finish_reason"] == choice["finish_reason"]
    assert usage["usage"] == whole["usage"]


async def test_the_openai_client_reads_a_stream(worker: Worker) -> None:
    async with openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="-") as api:
        stream = await api.completions.create(
            model="tiny", prompt=[40, 41], stream=True, logprobs=1
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].text for chunk in chunks)
    assert text == worker.context.tokenizer.decode([41, 40])
    assert [chunk.choices[0].logprobs.token_logprobs for chunk in chunks] == [[-0.5], [-0.5]]


async def test_unknown_and_null_fields_are_tolerated(worker: Worker) -> None:
    fields = GENERATOR_FIELDS | {"whatever": {"x": [1]}}
    status, _ = await worker.post(PATH, {"prompt": "hello"} | fields)
    assert status == 200


GENERATOR_FIELDS = {
    "model": "unknown",
    "logprobs": None,
    "repetition_penalty": 1.0,
    "ignore_eos": True,
    "temperature": 0.30000001192,
    "top_k": 0,
    "user": "someone",
    "stream_options": None,
    "bootstrap_room": None,
    "separate_reasoning": True,
}


async def test_sampling_fields_reach_the_scheduler(worker: Worker) -> None:
    fields = {
        "max_tokens": 9,
        "min_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "logit_bias": {"5": -1.5},
        "stop": "x",
        "stop_token_ids": [3],
        "ignore_eos": True,
        "seed": 11,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
    }
    await worker.post(PATH, {"prompt": "hello"} | fields)
    sampling = worker.scheduler.got(GenerateRequest)[0].sampling
    assert sampling.max_new_tokens == 9
    assert sampling.min_new_tokens == 2
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.2, 0.3)
    assert (sampling.logit_bias, sampling.stop, sampling.stop_token_ids) == (
        {5: -1.5},
        ("x",),
        (3,),
    )
    assert (sampling.ignore_eos, sampling.seed) == (True, 11)
    assert (sampling.skip_special_tokens, sampling.include_stop) == (False, True)


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "status"),
    [
        (255, 1, 200),
        (250, 6, 200),
        (250, 7, 400),
        (256, 1, 400),
        (256, None, 400),
        (250, None, 200),
    ],
)
async def test_what_can_never_fit_is_refused_at_once(
    worker: Worker, prompt_tokens: int, max_tokens: int | None, status: int
) -> None:
    body = {"prompt": [40] * prompt_tokens, "max_tokens": max_tokens}
    got, _ = await worker.post(PATH, body)
    assert got == status
    if status == 400:
        assert worker.scheduler.seen == []
    else:
        asked = worker.scheduler.seen[0].sampling.max_new_tokens
        assert asked == (256 - prompt_tokens if max_tokens is None else max_tokens)

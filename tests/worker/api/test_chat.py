"""POST /v1/chat/completions on a real port."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.worker.api.conftest import Worker
from tests.worker.api.scripted import say

USER = [{"role": "user", "content": "hello"}]


def client(worker: Worker) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{worker.url}/v1", api_key="-", max_retries=0)


def answer(worker: Worker, text: str) -> None:
    """Every sample says `text`."""
    ids = worker.context.tokenizer.encode(text)
    worker.scheduler.script = lambda request: say(request, ids)


async def test_openai_client_gets_text_usage_and_finish_reason(worker: Worker) -> None:
    answer(worker, "hello world")
    async with client(worker) as api:
        reply = await api.chat.completions.create(model="tiny", messages=USER)
    assert reply.choices[0].message.content == "hello world"
    assert reply.choices[0].finish_reason == "stop"
    prompt = worker.context.tokenizer.encode(
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert reply.usage.prompt_tokens == len(prompt)
    assert reply.usage.completion_tokens == len(worker.context.tokenizer.encode("hello world"))
    assert reply.usage.prompt_tokens_details.cached_tokens == 3


async def test_openai_client_streams_the_same_text(worker: Worker) -> None:
    answer(worker, "hello wörld 😀")
    async with client(worker) as api:
        stream = await api.chat.completions.create(model="tiny", messages=USER, stream=True)
        chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "hello wörld 😀"
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


async def test_openai_client_gets_logprobs(worker: Worker) -> None:
    answer(worker, "hello world")
    async with client(worker) as api:
        reply = await api.chat.completions.create(
            model="tiny", messages=USER, logprobs=True, top_logprobs=2
        )
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens
    assert "".join(entry.token for entry in content) == "hello world"
    assert [len(entry.top_logprobs) for entry in content] == [2] * len(content)
    assert bytes(content[0].bytes).decode() == content[0].token


async def test_samples_have_own_index_seed_and_rid(worker: Worker) -> None:
    async with client(worker) as api:
        reply = await api.chat.completions.create(model="tiny", messages=USER, n=3, seed=7)
    requests = [message for message in worker.scheduler.seen if hasattr(message, "sampling")]
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert [request.sampling.seed for request in requests] == [7, 8, 9]
    assert len({request.rid for request in requests}) == 3


@pytest.mark.parametrize("include", [True, False, None], ids=str)
async def test_usage_chunk_comes_last_with_empty_choices(
    worker: Worker, include: bool | None
) -> None:
    answer(worker, "hello world")
    options = {} if include is None else {"stream_options": {"include_usage": include}}
    events = await worker.events("/v1/chat/completions", {"messages": USER} | options)
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    chunks = events[:-1]
    assert [chunk["choices"] == [] for chunk in chunks].count(True) == (1 if include else 0)
    if include:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == len(
            worker.context.tokenizer.encode("hello world")
        )
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert all("usage" not in chunk for chunk in chunks)


async def test_continuous_usage_counts_up_in_every_chunk(worker: Worker) -> None:
    answer(worker, "hello world how are you")
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await worker.events(
        "/v1/chat/completions", {"messages": USER, "stream_options": options}
    )
    counts = [chunk["usage"]["completion_tokens"] for chunk in events[:-1]]
    assert counts == sorted(counts)
    assert counts[-1] == len(worker.context.tokenizer.encode("hello world how are you"))


async def test_every_stream_starts_with_the_role_and_ends_with_one_done(worker: Worker) -> None:
    events = await worker.events("/v1/chat/completions", {"messages": USER, "n": 2})
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1] == "[DONE]"
    finished = [c["index"] for e in events[:-1] for c in e["choices"] if c["finish_reason"]]
    assert sorted(finished) == [0, 1]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        pytest.param("hello", "hello", id="string"),
        pytest.param([{"type": "text", "text": "hello"}], "hello", id="part"),
        pytest.param(
            [{"type": "text", "text": "hello"}, {"type": "text", "text": "world"}],
            "hello\nworld",
            id="parts",
        ),
    ],
)
async def test_content_may_be_a_string_or_text_parts(
    worker: Worker, content: Any, text: str
) -> None:
    status, _ = await worker.post(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": content}]}
    )
    prompt = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    assert status == 200
    assert worker.scheduler.seen[0].input_ids == worker.context.tokenizer.encode(prompt)


async def test_max_completion_tokens_wins_over_max_tokens(worker: Worker) -> None:
    body = {"messages": USER, "max_tokens": 9, "max_completion_tokens": 2}
    status, reply = await worker.post("/v1/chat/completions", body)
    assert (status, reply["usage"]["completion_tokens"]) == (200, 2)
    assert reply["choices"][0]["finish_reason"] == "length"


async def test_without_max_tokens_the_rest_of_the_context_is_allowed(worker: Worker) -> None:
    await worker.post("/v1/chat/completions", {"messages": USER})
    request = worker.scheduler.seen[0]
    assert request.sampling.max_new_tokens == 256 - len(request.input_ids)


@pytest.mark.parametrize(
    ("change", "kind", "source"),
    [
        pytest.param({"response_format": {"type": "text"}}, None, "", id="text"),
        pytest.param({"response_format": {"type": "json_object"}}, "json_object", "", id="object"),
        pytest.param(
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": {"type": "integer"}, "strict": True},
                }
            },
            "json_schema",
            '{"type": "integer"}',
            id="schema",
        ),
        pytest.param({"regex": "a+b"}, "regex", "a+b", id="regex"),
        pytest.param({"grammar": 'start: "a"'}, "lark", 'start: "a"', id="lark"),
    ],
)
async def test_structured_output_reaches_the_scheduler(
    worker: Worker, change: dict[str, Any], kind: str | None, source: str
) -> None:
    status, _ = await worker.post("/v1/chat/completions", {"messages": USER} | change)
    grammar = worker.scheduler.seen[0].sampling.grammar
    assert status == 200
    assert (grammar and grammar.kind) == kind
    assert grammar is None or grammar.source == source


async def test_ebnf_is_translated(worker: Worker) -> None:
    await worker.post("/v1/chat/completions", {"messages": USER, "ebnf": 'root ::= "a"'})
    grammar = worker.scheduler.seen[0].sampling.grammar
    assert grammar.kind == "lark"
    assert "start:" in grammar.source


async def test_timeline_comes_with_the_last_chunk_when_asked(worker: Worker) -> None:
    stage = {"name": "decode", "start": 1.0, "end": 2.0, "detail": ""}
    body = {"messages": USER, "pdserve_timeline": True}
    _, reply = await worker.post("/v1/chat/completions", body)
    events = await worker.events("/v1/chat/completions", body)
    assert reply["pdserve"] == {"stages": [stage]}
    assert events[-2]["pdserve"] == {"stages": [stage]}
    assert all("pdserve" not in event for event in events[:-2])

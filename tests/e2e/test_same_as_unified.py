"""A pair answers like one server: every feature, through the router, against the unified role."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import OpenAI

from tests.e2e.fleet import Up

SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "n": {"type": "integer", "maximum": 9}},
    "required": ["city", "n"],
    "additionalProperties": False,
}
PROMPT = "prefill and decode are two phases"

COMPLETIONS: dict[str, dict[str, Any]] = {
    "greedy": {"max_tokens": 12},
    "one token": {"max_tokens": 1},
    "two tokens": {"max_tokens": 2},
    "stop string": {"max_tokens": 30, "stop": ["e"]},
    "min tokens": {"max_tokens": 12, "extra_body": {"min_tokens": 10}},
    "ignore eos": {"max_tokens": 40, "extra_body": {"ignore_eos": True}},
    "logprobs": {"max_tokens": 6, "logprobs": 3},
    "echo": {"max_tokens": 4, "echo": True},
    "echo with logprobs": {"max_tokens": 4, "echo": True, "logprobs": 2},
    "prompt only": {"max_tokens": 0, "echo": True},
    "two samples": {"max_tokens": 8, "n": 2, "temperature": 1.0, "seed": 5},
    "seeded": {"max_tokens": 16, "temperature": 1.0, "seed": 17},
    "top k and p": {"max_tokens": 16, "temperature": 0.9, "seed": 3, "top_p": 0.8}
    | {"extra_body": {"top_k": 20, "min_p": 0.01}},
    "penalties": {"max_tokens": 20, "presence_penalty": 1.0, "frequency_penalty": 0.5}
    | {"extra_body": {"repetition_penalty": 1.3}},
    "bias on the first token": {"max_tokens": 3, "logit_bias": {"77": 100}},
    "regex": {"max_tokens": 20, "extra_body": {"regex": "(yes|no)!"}},
    "regex, one token": {"max_tokens": 1, "extra_body": {"regex": "(yes|no)!"}},
    "token ids": {"prompt": [50, 60, 70, 80], "max_tokens": 5},
    "two prompts": {"prompt": ["prefill", "decode and the cache"], "max_tokens": 5},
    "two prompts, two samples": {"prompt": ["prefill", "decode"], "max_tokens": 4, "n": 2}
    | {"temperature": 1.0, "seed": 9},
}


def client(running: Up) -> OpenAI:
    """The official client, without retries that would hide a failure."""
    return OpenAI(base_url=f"{running.url}/v1", api_key="-", max_retries=0)


def plain(answer: Any) -> dict[str, Any]:
    """An answer without what is different in every answer; scores to three decimals."""
    fields = json.loads(answer.model_dump_json(exclude={"id", "created", "system_fingerprint"}))
    return json.loads(json.dumps(fields), parse_float=lambda text: round(float(text), 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPLETIONS)
def test_completion(name: str, pair: Up, unified: Up) -> None:
    wanted = {"model": "any", "prompt": PROMPT, "temperature": 0.0} | COMPLETIONS[name]
    got = client(pair).completions.create(**wanted)
    expected = client(unified).completions.create(**wanted)
    assert plain(got) == plain(expected)
    assert got.choices


@pytest.mark.slow
@pytest.mark.parametrize("name", ["greedy", "stop string", "seeded", "logprobs", "two samples"])
def test_streamed_completion_is_the_whole_one(name: str, pair: Up) -> None:
    wanted = {"model": "any", "prompt": PROMPT, "temperature": 0.0} | COMPLETIONS[name]
    whole = client(pair).completions.create(**wanted)
    options = {"stream_options": {"include_usage": True}}
    chunks = list(client(pair).completions.create(**wanted, stream=True, **options))
    for index, choice in enumerate(whole.choices):
        parts = [c.choices[0] for c in chunks if c.choices and c.choices[0].index == index]
        assert "".join(part.text for part in parts) == choice.text
        assert parts[-1].finish_reason == choice.finish_reason
    assert [c for c in chunks if not c.choices] == chunks[-1:]
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.slow
@pytest.mark.parametrize("max_tokens", [1, 2, 64])
def test_json_schema_from_the_first_token_on(max_tokens: int, pair: Up, unified: Up) -> None:
    wanted = {
        "model": "any",
        "messages": [{"role": "user", "content": "where?"}],
        "temperature": 0.0,
        "max_tokens": max_tokens,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
        },
    }
    got = client(pair).chat.completions.create(**wanted)
    assert plain(got) == plain(client(unified).chat.completions.create(**wanted))
    if max_tokens == 64:
        assert json.loads(got.choices[0].message.content)["city"] in ("Paris", "Rome")


@pytest.mark.slow
def test_chat_streams_with_scores(pair: Up, unified: Up) -> None:
    wanted = {
        "model": "any",
        "messages": [{"role": "user", "content": "decode"}],
        "temperature": 0.0,
        "max_tokens": 10,
        "logprobs": True,
        "top_logprobs": 2,
    }
    chunks = list(client(pair).chat.completions.create(**wanted, stream=True))
    whole = client(unified).chat.completions.create(**wanted).choices[0]
    deltas = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert deltas[0].delta.role == "assistant"
    assert "".join(delta.delta.content or "" for delta in deltas) == whole.message.content
    scored = [token for delta in deltas if delta.logprobs for token in delta.logprobs.content]
    assert [token.token for token in scored] == [token.token for token in whole.logprobs.content]


@pytest.mark.slow
def test_first_token_that_ends_the_answer(pair: Up, unified: Up) -> None:
    """Whatever comes first is made a stop token, a stop string, or the end token."""
    ask = {"model": "any", "prompt": PROMPT, "temperature": 0.0, "max_tokens": 8}
    first = client(unified).completions.create(**ask | {"max_tokens": 1}).choices[0].text
    [token] = _tokens(unified, ask)
    for extra in (
        {"stop": [first]},
        {"extra_body": {"stop_token_ids": [token]}},
        {"logit_bias": {"2": 100}},
    ):
        got = client(pair).completions.create(**ask, **extra)
        assert plain(got) == plain(client(unified).completions.create(**ask, **extra))
        assert got.choices[0].finish_reason == "stop"
        assert got.usage.completion_tokens == 1


def _tokens(running: Up, ask: dict[str, Any]) -> list[int]:
    body = {"text": ask["prompt"], "sampling_params": {"temperature": 0.0, "max_new_tokens": 1}}
    answer = client(running).post(f"{running.url}/generate", body=body, cast_to=object)
    assert isinstance(answer, dict)
    return list(answer["output_ids"])


@pytest.mark.slow
def test_cached_prompt_tokens_are_told_as_on_the_unified_role(pair: Up, unified: Up) -> None:
    ask = {"model": "any", "prompt": list(range(100, 180)), "max_tokens": 2, "temperature": 0.0}
    for running in (pair, unified):
        client(running).completions.create(**ask)
    cached = [
        client(running).completions.create(**ask).usage.prompt_tokens_details.cached_tokens
        for running in (pair, unified)
    ]
    assert cached == [64, 64]

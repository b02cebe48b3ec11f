"""Request bodies of the HTTP API, and the one place where JSON becomes one of them.

Every field may be null or missing; fields that are not named here are ignored, since clients and
routers send many. A wrong type is a 400 that names the field.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from pd_worker.errors import InvalidRequest

TokenIds = list[int]

MAX_SAMPLES = 128
"""Largest `n`."""

MAX_PROMPTS = 256
"""Most prompts in one request."""


class BootstrapFields(msgspec.Struct, kw_only=True):
    """Where the two legs meet; one value, or one for each prompt of a batch."""

    bootstrap_host: str | list[str] | None = None
    bootstrap_port: int | str | list[int | str | None] | None = None
    bootstrap_room: int | str | list[int | str] | None = None


class StreamOptions(msgspec.Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(msgspec.Struct, kw_only=True):
    schema: dict[str, Any] | bool
    name: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    type: str
    json_schema: JsonSchema | None = None


class OpenAIFields(BootstrapFields, kw_only=True):
    """What completions and chat completions have in common."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: TokenIds | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None
    rid: str | None = None
    pdserve_timeline: bool | None = None


class CompletionRequest(OpenAIFields, kw_only=True):
    prompt: str | list[str | int | TokenIds]
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None


class ContentPart(msgspec.Struct, kw_only=True):
    type: str
    text: str | None = None


class Message(msgspec.Struct, kw_only=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ChatRequest(OpenAIFields, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class NativeSampling(msgspec.Struct, kw_only=True):
    """`sampling_params` of /generate."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: TokenIds | None = None
    sampling_seed: int | None = None
    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    json_schema: str | dict[str, Any] | None = None
    regex: str | None = None
    ebnf: str | None = None


class GenerateBody(BootstrapFields, kw_only=True):
    text: str | list[str] | None = None
    input_ids: list[int | TokenIds] | None = None
    sampling_params: NativeSampling | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    top_logprobs_num: int | None = None
    logprob_start_len: int | None = None
    return_text_in_logprobs: bool | None = None
    rid: str | list[str] | None = None
    pdserve_timeline: bool | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    prompt: str | list[str] | None = None
    text: str | list[str] | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    tokens: list[int | TokenIds]
    skip_special_tokens: bool | None = None


class AbortBody(msgspec.Struct, kw_only=True):
    rid: str


Body = TypeVar("Body", bound=msgspec.Struct)

FIELD = re.compile(r"at (?:`key` in )?`\$\.?([^`]*)`")
MISSING = re.compile(r"missing required field `([^`]*)`")


def read_json_object(data: bytes) -> dict[str, Any]:
    """The body as a JSON object; raises InvalidRequest on anything else."""
    try:
        loaded = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(loaded, dict):
        raise InvalidRequest("the body must be a JSON object")
    return loaded


def parse(raw: dict[str, Any], kind: type[Body]) -> Body:
    """A typed body; raises InvalidRequest that names the first field of a wrong type."""
    try:
        return msgspec.convert(raw, kind, str_keys=True)
    except msgspec.ValidationError as error:
        found = FIELD.search(str(error)) or MISSING.search(str(error))
        raise InvalidRequest(str(error), param=found[1] if found else None) from error

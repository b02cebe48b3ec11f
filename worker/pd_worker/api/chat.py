"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import web

from pd_worker.api import intake, logprobs
from pd_worker.api.choice import Choice, Delta
from pd_worker.api.context import CONTEXT, Context
from pd_worker.api.endpoint import Plan, answer, wants_timeline
from pd_worker.api.generation import Generation, Job
from pd_worker.api.openai import OpenAICodec, finish_reason
from pd_worker.api.sampling import openai_sampling
from pd_worker.api.schema import ChatRequest, ContentPart, Message, parse
from pd_worker.errors import InvalidRequest
from pd_worker.messages import TopLogprobs


async def chat_completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    return await answer(request, _prepare)


async def _prepare(request: web.Request, raw: dict[str, Any]) -> Plan:
    context = request.app[CONTEXT]
    body = parse(raw, ChatRequest)
    _check(body)
    tools = None if body.tool_choice == "none" else body.tools
    prompt = await encode_chat(context, body.messages, tools, body.chat_template_kwargs)
    job = await _job(context, request, body, prompt)
    return Plan(job=job, codec=ChatCodec(context, body), stream=bool(body.stream))


async def encode_chat(
    context: Context,
    messages: list[Message],
    tools: list[dict[str, Any]] | None,
    template_args: dict[str, Any] | None,
) -> list[int]:
    """Token ids of a conversation, ready for the assistant's turn."""
    if not messages:
        raise InvalidRequest("messages is empty", param="messages")
    plain = [_plain(message, index) for index, message in enumerate(messages)]
    text = context.tokenizer.render_chat(plain, tools, template_args or {})
    ids = await intake.encode(context, text, add_special_tokens=False)
    intake.check_ids(ids, context.ready.vocab_size, "messages")
    return ids


def _plain(message: Message, index: int) -> dict[str, Any]:
    """The message as templates want it: content is one string, absent fields are absent."""
    fields: dict[str, Any] = msgspec.to_builtins(message)
    known = {name: value for name, value in fields.items() if value is not None}
    param = f"messages[{index}].content"
    if isinstance(message.content, list):
        return known | {"content": "\n".join(_text(part, param) for part in message.content)}
    if message.content is None and not message.tool_calls:
        raise InvalidRequest(f"{param} is missing", param=param)
    return known | {"content": message.content or ""}


def _text(part: ContentPart, param: str) -> str:
    if part.type != "text" or part.text is None:
        raise InvalidRequest(f"{param}: only text parts are supported", param=param)
    return part.text


def _check(body: ChatRequest) -> None:
    if body.tool_choice not in (None, "none", "auto"):
        raise InvalidRequest("tool_choice must be none or auto", param="tool_choice")
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")


async def _job(context: Context, request: web.Request, body: ChatRequest, prompt: list[int]) -> Job:
    n = intake.sample_count(context, body.n, prompts=1)
    newer = body.max_completion_tokens is not None
    budget = intake.output_budget(
        context,
        [prompt],
        asked=body.max_completion_tokens if newer else body.max_tokens,
        default=context.ready.max_request_tokens,
        param="max_completion_tokens" if newer else "max_tokens",
    )
    wanted = (body.top_logprobs or 0) if body.logprobs else None
    return Job(
        rid=intake.request_id(body.rid, request.headers.get("X-Request-ID")),
        endpoint="chat",
        prompts=[prompt],
        n=n,
        sampling=await intake.sampling_params(context, openai_sampling, body, budget),
        num_logprobs=intake.logprob_count(wanted, "top_logprobs"),
        prompt_logprobs=False,
        bootstraps=intake.bootstraps(context, body, prompts=1, n=n),
        timeline=wants_timeline(request, body.pdserve_timeline),
    )


class ChatCodec(OpenAICodec):
    """Chat completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, context: Context, body: ChatRequest) -> None:
        super().__init__(context.config.model.name, body)
        self._tokenizer = context.tokenizer
        self._num_top = (body.top_logprobs or 0) if body.logprobs else None

    def choice_chunks(self, generation: Generation, delta: Delta) -> Iterator[dict[str, Any]]:
        """The role first, then one chunk where there is text, a score or the end."""
        choice = generation.choices[delta.index]
        if delta.first:
            yield self._chunk(delta.index, {"role": "assistant", "content": ""})
        scored = self._num_top is not None and delta.token_ids
        if not (delta.text or delta.finished or scored):
            return
        yield self._chunk(
            delta.index,
            {"content": delta.text} if delta.text or scored else {},
            self._scores(delta.token_ids, delta.logprobs, delta.top_logprobs),
            finish_reason(choice) if delta.finished else None,
        )

    def choice(self, generation: Generation, choice: Choice) -> dict[str, Any]:
        """The whole sample."""
        tally = choice.tally
        return {
            "index": choice.index,
            "message": {"role": "assistant", "content": tally.text},
            "logprobs": self._scores(tally.token_ids, tally.logprobs, tally.top_logprobs),
            "finish_reason": finish_reason(choice),
        }

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        scores: dict[str, Any] | None = None,
        finish: str | None = None,
    ) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": scores, "finish_reason": finish}

    def _scores(
        self, token_ids: list[int], values: list[float], tops: list[TopLogprobs]
    ) -> dict[str, Any] | None:
        if self._num_top is None:
            return None
        content = logprobs.chat_content(self._tokenizer, token_ids, values, tops, self._num_top)
        return {"content": content, "refusal": None}

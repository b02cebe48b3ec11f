"""POST /v1/completions.

With `echo` and `logprobs` each choice begins with one position for each prompt token. Decode never
sees the prompt's logits: there `token_logprobs` and `top_logprobs` are null at those positions (in
a stream: in each choice's first chunk), and the router replaces them with the same positions of
prefill's answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from aiohttp import web

from pd_worker.api import intake, logprobs
from pd_worker.api.choice import Choice, Delta
from pd_worker.api.context import CONTEXT, Context
from pd_worker.api.endpoint import Plan, answer, wants_timeline
from pd_worker.api.generation import Generation, Job
from pd_worker.api.openai import OpenAICodec, finish_reason
from pd_worker.api.sampling import openai_sampling
from pd_worker.api.schema import CompletionRequest, parse
from pd_worker.api.tokenizer import Tokenizer
from pd_worker.errors import InvalidRequest
from pd_worker.messages import TopLogprobs

DEFAULT_MAX_TOKENS = 16
"""OpenAI's."""


async def completions(request: web.Request) -> web.StreamResponse:
    """POST /v1/completions."""
    return await answer(request, _prepare)


async def _prepare(request: web.Request, raw: dict[str, Any]) -> Plan:
    context = request.app[CONTEXT]
    body = parse(raw, CompletionRequest)
    _check(body)
    given = prompt_list(body.prompt, "prompt")
    prompts = await intake.encode_prompts(context, given, "prompt")
    job = await _job(context, request, body, prompts)
    texts = _echoed(context.tokenizer, given, body) if body.echo else None
    codec = CompletionCodec(context, body, texts)
    return Plan(job=job, codec=codec, stream=bool(body.stream))


def prompt_list(prompt: str | list[Any], param: str) -> list[str | list[int]]:
    """Prompts of a string, a list of strings, token ids or a list of token ids."""
    if isinstance(prompt, str):
        return [prompt]
    ints = [isinstance(item, int) for item in prompt]
    if not any(ints):
        return prompt
    if not all(ints):
        raise InvalidRequest(f"{param} mixes token ids with prompts", param=param)
    return [prompt]


def _check(body: CompletionRequest) -> None:
    if body.suffix:
        raise InvalidRequest("suffix is not supported", param="suffix")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidRequest("best_of must equal n", param="best_of")


async def _job(
    context: Context, request: web.Request, body: CompletionRequest, prompts: list[list[int]]
) -> Job:
    n = intake.sample_count(context, body.n, prompts=len(prompts))
    budget = intake.output_budget(
        context, prompts, asked=body.max_tokens, default=DEFAULT_MAX_TOKENS, param="max_tokens"
    )
    return Job(
        rid=intake.request_id(body.rid, request.headers.get("X-Request-ID")),
        endpoint="completions",
        prompts=prompts,
        n=n,
        sampling=await intake.sampling_params(context, openai_sampling, body, budget),
        num_logprobs=intake.logprob_count(body.logprobs, "logprobs"),
        prompt_logprobs=bool(body.echo) and body.logprobs is not None,
        bootstraps=intake.bootstraps(context, body, prompts=len(prompts), n=n),
        timeline=wants_timeline(request, body.pdserve_timeline),
    )


def _echoed(
    tokenizer: Tokenizer, given: list[str | list[int]], body: CompletionRequest
) -> list[str]:
    skip = body.skip_special_tokens is not False
    return [
        prompt if isinstance(prompt, str) else tokenizer.decode(prompt, skip_special_tokens=skip)
        for prompt in given
    ]


class CompletionCodec(OpenAICodec):
    """Text completions."""

    prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, context: Context, body: CompletionRequest, echo: list[str] | None) -> None:
        """`echo` holds the prompts' texts where they are part of the answer."""
        super().__init__(context.config.model.name, body)
        self._tokenizer = context.tokenizer
        self._echo = echo
        self._num_top = body.logprobs
        self._offsets: dict[int, int] = {}

    def choice_chunks(self, generation: Generation, delta: Delta) -> Iterator[dict[str, Any]]:
        """One chunk where there is text, a score or the end; the first with the echo."""
        choice = generation.choices[delta.index]
        text = (self._prompt_text(generation, choice) if delta.first else "") + delta.text
        if not text and not delta.finished and (self._num_top is None or not delta.token_ids):
            return
        yield {
            "index": delta.index,
            "text": text,
            "logprobs": self._block(
                generation,
                choice,
                delta.token_ids,
                delta.logprobs,
                delta.top_logprobs,
                with_prompt=delta.first,
            ),
            "finish_reason": finish_reason(choice) if delta.finished else None,
        }

    def choice(self, generation: Generation, choice: Choice) -> dict[str, Any]:
        """The whole sample."""
        tally = choice.tally
        return {
            "index": choice.index,
            "text": self._prompt_text(generation, choice) + tally.text,
            "logprobs": self._block(
                generation,
                choice,
                tally.token_ids,
                tally.logprobs,
                tally.top_logprobs,
                with_prompt=True,
            ),
            "finish_reason": finish_reason(choice),
        }

    def _prompt_text(self, generation: Generation, choice: Choice) -> str:
        return self._echo[choice.index // generation.job.n] if self._echo else ""

    def _block(
        self,
        generation: Generation,
        choice: Choice,
        token_ids: list[int],
        scores: list[float],
        tops: list[TopLogprobs],
        *,
        with_prompt: bool,
    ) -> dict[str, Any] | None:
        if self._num_top is None:
            return None
        values = cast("list[float | None]", scores)
        if with_prompt and self._echo is not None:
            prompt = generation.job.prompts[choice.index // generation.job.n]
            known = choice.tally.prompt_logprobs or [None] * len(prompt)
            known_tops = logprobs.padded(choice.tally.prompt_top_logprobs, len(prompt))
            token_ids, values, tops = prompt + token_ids, known + values, known_tops + tops
        offset = self._offsets.get(choice.index, 0)
        block = logprobs.completion_block(
            self._tokenizer, token_ids, values, tops, num_top=self._num_top, offset=offset
        )
        self._offsets[choice.index] = offset + sum(map(len, block["tokens"]))
        return block

"""SGLang's native API: /generate, /tokenize, /detokenize, /abort_request, /flush_cache.

In a stream every event carries the text so far, not what is new, and so do its counts. On decode
the prompt's log-probabilities are empty lists; the router takes them from prefill's answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aiohttp import web

from pd_worker.api import intake, logprobs
from pd_worker.api.chat import encode_chat
from pd_worker.api.choice import Choice, Delta
from pd_worker.api.completions import prompt_list
from pd_worker.api.context import CONTEXT, Context
from pd_worker.api.endpoint import Plan, answer, wants_timeline
from pd_worker.api.failures import json_response
from pd_worker.api.generation import Generation, Job
from pd_worker.api.openai import timeline
from pd_worker.api.sampling import native_sampling
from pd_worker.api.schema import (
    AbortBody,
    DetokenizeBody,
    GenerateBody,
    NativeSampling,
    TokenizeBody,
    parse,
    read_json_object,
)
from pd_worker.errors import InvalidRequest

DEFAULT_MAX_TOKENS = 128
"""SGLang's."""


async def generate(request: web.Request) -> web.StreamResponse:
    """POST /generate."""
    return await answer(request, _prepare)


async def _prepare(request: web.Request, raw: dict[str, Any]) -> Plan:
    context = request.app[CONTEXT]
    body = parse(raw, GenerateBody)
    if (body.text is None) == (body.input_ids is None):
        raise InvalidRequest("give either text or input_ids", param="text")
    name = "text" if body.input_ids is None else "input_ids"
    given = body.text if body.input_ids is None else body.input_ids
    assert given is not None
    prompts = await intake.encode_prompts(context, prompt_list(given, name), name)
    batch = not isinstance(given, str) and not isinstance(given[0], int)
    job = await _job(context, request, body, prompts)
    codec = NativeCodec(context, body, is_list=batch or job.n > 1)
    return Plan(job=job, codec=codec, stream=bool(body.stream))


async def _job(
    context: Context, request: web.Request, body: GenerateBody, prompts: list[list[int]]
) -> Job:
    params = body.sampling_params or NativeSampling()
    n = intake.sample_count(context, params.n, prompts=len(prompts))
    budget = intake.output_budget(
        context,
        prompts,
        asked=params.max_new_tokens,
        default=DEFAULT_MAX_TOKENS,
        param="max_new_tokens",
    )
    start = body.logprob_start_len
    return Job(
        rid=intake.request_id(_rid(body), request.headers.get("X-Request-ID")),
        endpoint="generate",
        prompts=prompts,
        n=n,
        sampling=await intake.sampling_params(context, native_sampling, params, budget),
        num_logprobs=intake.logprob_count(body.top_logprobs_num or 0, "top_logprobs_num")
        if body.return_logprob
        else -1,
        prompt_logprobs=bool(body.return_logprob) and start is not None and start >= 0,
        bootstraps=intake.bootstraps(context, body, prompts=len(prompts), n=n),
        timeline=wants_timeline(request, body.pdserve_timeline),
    )


def _rid(body: GenerateBody) -> str | None:
    """The request's name; of a list the first, since a batch is one request here."""
    if isinstance(body.rid, list):
        return body.rid[0] if body.rid else None
    return body.rid


class NativeCodec:
    """Answers of /generate."""

    def __init__(self, context: Context, body: GenerateBody, *, is_list: bool) -> None:
        self._tokenizer = context.tokenizer
        self._is_list = is_list
        self._scored = bool(body.return_logprob)
        self._num_top = body.top_logprobs_num or 0
        self._start = body.logprob_start_len or 0
        self._with_text = bool(body.return_text_in_logprobs)

    def chunks(self, generation: Generation, deltas: list[Delta]) -> Iterator[dict[str, Any]]:
        """The state of each sample that went on; what is between is in it."""
        for index in dict.fromkeys(delta.index for delta in deltas):
            yield self._sample(generation, generation.choices[index])

    def tail(self, generation: Generation) -> Iterator[dict[str, Any]]:
        """The timeline with the last state, where it is wanted."""
        if generation.job.timeline:
            yield self._sample(generation, generation.choices[-1]) | timeline(generation)

    def answer(self, generation: Generation) -> list[dict[str, Any]] | dict[str, Any]:
        """A list for a batch or several samples, else one object."""
        samples = [self._sample(generation, choice) for choice in generation.choices]
        samples[-1] |= timeline(generation)
        return samples if self._is_list else samples[0]

    def _sample(self, generation: Generation, choice: Choice) -> dict[str, Any]:
        tally, job = choice.tally, generation.job
        prompt = job.prompts[choice.index // job.n]
        meta: dict[str, Any] = {
            "id": job.rid if job.num_samples == 1 else f"{job.rid}.{choice.index}",
            "finish_reason": _finish(choice),
            "prompt_tokens": len(prompt),
            "completion_tokens": len(tally.token_ids),
            "cached_tokens": tally.cached_tokens,
            "e2e_latency": generation.elapsed_s,
        }
        if self._scored:
            meta |= self._scores(choice, prompt)
        sample = {"text": tally.text, "output_ids": tally.token_ids, "meta_info": meta}
        return sample | {"index": choice.index} if self._is_list else sample

    def _scores(self, choice: Choice, prompt: list[int]) -> dict[str, Any]:
        tally, text, start = choice.tally, self._with_text, self._start
        known = tally.prompt_logprobs[start:]
        scores: dict[str, Any] = {
            "input_token_logprobs": logprobs.native_entries(
                self._tokenizer, prompt[start:] if known else [], known, with_text=text
            ),
            "output_token_logprobs": logprobs.native_entries(
                self._tokenizer, tally.token_ids, [*tally.logprobs], with_text=text
            ),
        }
        if self._num_top:
            for name, tops in (
                ("input_top_logprobs", tally.prompt_top_logprobs[start:]),
                ("output_top_logprobs", tally.top_logprobs),
            ):
                scores[name] = logprobs.native_tops(
                    self._tokenizer, tops, self._num_top, with_text=text
                )
        return scores


def _finish(choice: Choice) -> dict[str, Any] | None:
    finish, tally = choice.tally.finish, choice.tally
    if finish is None:
        return None
    if finish.reason == "length":
        return {"type": "length", "length": len(tally.token_ids)}
    if finish.reason == "stop":
        return {"type": "stop", "matched": tally.matched}
    return {"type": "abort", "message": finish.message}


async def tokenize(request: web.Request) -> web.Response:
    """POST /tokenize {prompt or text or messages}."""
    context = request.app[CONTEXT]
    body = parse(read_json_object(await request.read()), TokenizeBody)
    text = body.prompt if body.text is None else body.text
    special = body.add_special_tokens is not False
    tokens: Any
    if body.messages is not None:
        tokens = await encode_chat(context, body.messages, None, None)
    elif isinstance(text, str):
        tokens = await intake.encode(context, text, add_special_tokens=special)
    elif text is not None:
        tokens = [await intake.encode(context, one, add_special_tokens=special) for one in text]
    else:
        raise InvalidRequest("prompt is missing", param="prompt")
    batch = isinstance(text, list)
    count = [len(ids) for ids in tokens] if batch else len(tokens)
    ready = context.engine.vitals.ready
    limit = ready.max_request_tokens if ready else None
    return json_response({"tokens": tokens, "count": count, "max_model_len": limit})


async def detokenize(request: web.Request) -> web.Response:
    """POST /detokenize {tokens}: one text, or one for each list."""
    context = request.app[CONTEXT]
    body = parse(read_json_object(await request.read()), DetokenizeBody)
    skip = body.skip_special_tokens is not False
    texts = []
    lists = prompt_list(body.tokens, "tokens") if body.tokens else [[]]
    for ids in lists:
        assert isinstance(ids, list)
        if ids:
            intake.check_ids(ids, context.tokenizer.vocab_size, "tokens")
        texts.append(context.tokenizer.decode(ids, skip_special_tokens=skip))
    nested = bool(body.tokens) and isinstance(body.tokens[0], list)
    text = texts if nested else texts[0]
    return json_response({"text": text, "prompt": text})


async def abort_request(request: web.Request) -> web.Response:
    """POST /abort_request {rid}: ends the request of exactly that name; 200 either way."""
    context = request.app[CONTEXT]
    body = parse(read_json_object(await request.read()), AbortBody)
    found = context.engine.abort(body.rid, "aborted by /abort_request")
    return json_response({"rid": body.rid, "found": found})


async def flush_cache(request: web.Request) -> web.Response:
    """POST /flush_cache: drops the prefix cache's unused part."""
    request.app[CONTEXT].engine.flush_cache()
    return json_response({"message": "the prefix cache is being flushed"})

"""From a parsed body to a Job: everything that can be refused is refused here, before sending.

What is here holds for all dialects; the endpoint modules add their own fields.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from pd_worker.api.context import Context
from pd_worker.api.rooms import FIELDS, has_bootstrap, sample_bootstraps
from pd_worker.api.sampling import GRAMMAR_FIELDS
from pd_worker.api.schema import MAX_PROMPTS, MAX_SAMPLES, BootstrapFields
from pd_worker.core.sampling_params import MAX_TOP_LOGPROBS, SamplingParams
from pd_worker.errors import InvalidRequest
from pd_worker.messages import Bootstrap

MAX_RID = 256

LONG_TEXT = 8192
"""Characters above which a text is encoded on another thread, so that streams go on."""


def request_id(given: str | None, header: str | None) -> str:
    """The request's name: the body's `rid`, else X-Request-ID made unique, else drawn."""
    if given is not None:
        return check_rid(given)
    drawn = uuid.uuid4().hex
    return f"{check_rid(header)[: MAX_RID - 9]}-{drawn[:8]}" if header else drawn


def check_rid(rid: str) -> str:
    """A name that is safe in logs and not too long."""
    if not rid or len(rid) > MAX_RID or not rid.isprintable():
        raise InvalidRequest(f"rid must have 1 to {MAX_RID} printable characters", param="rid")
    return rid


async def encode(context: Context, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """Token ids of a prompt text."""
    if len(text) <= LONG_TEXT:
        return context.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    return await asyncio.to_thread(
        context.tokenizer.encode, text, add_special_tokens=add_special_tokens
    )


async def encode_prompts(
    context: Context, prompts: Sequence[str | list[int]], param: str
) -> list[list[int]]:
    """Token ids of prompts that are texts or token ids already; each at least one token."""
    if not prompts:
        raise InvalidRequest(f"{param} is empty", param=param)
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(f"{param} holds more than {MAX_PROMPTS} prompts", param=param)
    vocab_size = context.ready.vocab_size
    encoded = []
    for prompt in prompts:
        ids = await encode(context, prompt) if isinstance(prompt, str) else prompt
        check_ids(ids, vocab_size, param)
        encoded.append(ids)
    return encoded


def check_ids(ids: list[int], vocab_size: int, param: str) -> None:
    """Raise InvalidRequest unless there are tokens and all are in the vocabulary."""
    if not ids:
        raise InvalidRequest(f"{param} is empty", param=param)
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise InvalidRequest(
            f"{param} holds a token id outside the vocabulary of {vocab_size}", param=param
        )


def output_budget(
    context: Context, prompts: list[list[int]], *, asked: int | None, default: int, param: str
) -> int:
    """max_new_tokens: what is asked where it fits, else InvalidRequest; not asked, the default
    as far as it fits. Prefill needs room for one token only, decode checks the rest."""
    limit = context.ready.max_request_tokens
    longest = max(map(len, prompts))
    if asked is not None and asked < 0:
        raise InvalidRequest(f"{param} must not be negative, got {asked}", param=param)
    needed = 1 if asked is None else asked
    if context.config.role == "prefill":
        needed = min(needed, 1)
    if longest + needed > limit:
        raise InvalidRequest(
            f"{longest} prompt tokens and {needed} output tokens are more than the "
            f"{limit} that fit in this worker",
            param=param if asked is not None and needed > 1 else "prompt",
        )
    return min(default, limit - longest) if asked is None else asked


async def sampling_params(
    context: Context, build: Callable[..., SamplingParams], body: msgspec.Struct, budget: int
) -> SamplingParams:
    """The request's sampling by one of sampling.py's builders; on another thread where a grammar
    has to be checked, so that streams go on."""
    bound = partial(
        build,
        body,
        max_new_tokens=budget,
        defaults=context.tokenizer.defaults,
        vocab_size=context.ready.vocab_size,
    )
    if any(getattr(body, name, None) is not None for name in GRAMMAR_FIELDS):
        return await asyncio.to_thread(bound)
    return bound()


def sample_count(context: Context, n: int | None, *, prompts: int) -> int:
    """`n`, checked: in itself and against what this worker can hold at all."""
    if n is not None and not 1 <= n <= MAX_SAMPLES:
        raise InvalidRequest(f"n must be between 1 and {MAX_SAMPLES}, got {n}", param="n")
    n, limit = n or 1, context.engine.max_samples
    if prompts * n > limit:
        raise InvalidRequest(
            f"{prompts} prompts with {n} samples are more than the {limit} this worker holds",
            param="n",
        )
    return n


def logprob_count(value: int | None, param: str) -> int:
    """Most probable tokens to report; -1 for None."""
    if value is None:
        return -1
    if not 0 <= value <= MAX_TOP_LOGPROBS:
        raise InvalidRequest(
            f"{param} must be between 0 and {MAX_TOP_LOGPROBS}, got {value}", param=param
        )
    return value


def bootstraps(
    context: Context, fields: BootstrapFields, *, prompts: int, n: int
) -> list[Bootstrap]:
    """Rooms of all samples on a prefill or decode worker; none on a unified one."""
    given = has_bootstrap(fields)
    if context.config.role == "unified":
        if given:
            raise InvalidRequest(
                f"{', '.join(FIELDS)} have no meaning on a unified worker", param="bootstrap_room"
            )
        return []
    if not given:
        raise InvalidRequest(
            f"this is a {context.config.role} worker: it needs {', '.join(FIELDS)}, "
            "which the router adds; send requests to the router",
            param="bootstrap_room",
        )
    return sample_bootstraps(
        fields, prompts=prompts, n=n, default_port=context.config.disagg.bootstrap_port
    )

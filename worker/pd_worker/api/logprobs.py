"""Log-probabilities in the forms of the three dialects. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pd_worker.api.tokenizer import Tokenizer
from pd_worker.messages import TopLogprobs

LEAST = -9999.0
"""Stands for minus infinity, which JSON cannot say; OpenAI's number."""


def finite(value: float) -> float:
    """The log-probability as JSON can carry it."""
    return value if math.isfinite(value) else LEAST


def chat_content(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[float],
    tops: Sequence[TopLogprobs],
    num_top: int,
) -> list[dict[str, Any]]:
    """`logprobs.content` of chat completions."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": tokenizer.token_text(token),
            "logprob": finite(logprob),
            "bytes": list(tokenizer.token_bytes(token)),
        }

    return [
        entry(token, logprob) | {"top_logprobs": [entry(*pair) for pair in top[:num_top]]}
        for token, logprob, top in zip(
            token_ids, logprobs, padded(tops, len(token_ids)), strict=True
        )
    ]


def completion_block(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[float | None],
    tops: Sequence[TopLogprobs],
    *,
    num_top: int,
    offset: int,
) -> dict[str, Any]:
    """`logprobs` of completions; `offset` is where the first token's text starts.

    A position without a log-probability (the first of a prompt, or a prompt's on decode) is null.
    """
    texts = [tokenizer.token_text(token) for token in token_ids]
    offsets = [offset]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    return {
        "tokens": texts,
        "token_logprobs": [None if value is None else finite(value) for value in logprobs],
        "top_logprobs": [
            _by_text(tokenizer, text, value, top[:num_top]) if num_top else None
            for text, value, top in zip(texts, logprobs, padded(tops, len(texts)), strict=True)
        ],
        "text_offset": offsets[:-1],
    }


def native_entries(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[float | None],
    *,
    with_text: bool,
) -> list[list[Any]]:
    """`[logprob, token id, text or null]` for each token, as in SGLang's meta_info."""
    return [
        [
            None if value is None else finite(value),
            token,
            tokenizer.token_text(token) if with_text else None,
        ]
        for token, value in zip(token_ids, logprobs, strict=True)
    ]


def native_tops(
    tokenizer: Tokenizer, tops: Sequence[TopLogprobs], num_top: int, *, with_text: bool
) -> list[list[list[Any]] | None]:
    """The most probable tokens of each position; null where there are none."""
    return [
        native_entries(
            tokenizer,
            [token for token, _ in top[:num_top]],
            [value for _, value in top[:num_top]],
            with_text=with_text,
        )
        or None
        for top in tops
    ]


def padded(tops: Sequence[TopLogprobs], length: int) -> list[TopLogprobs]:
    """One entry a token, also where the most probable were not asked for."""
    return [*tops, *([] for _ in range(length - len(tops)))]


def _by_text(
    tokenizer: Tokenizer, text: str, value: float | None, top: TopLogprobs
) -> dict[str, float] | None:
    if value is None:
        return None
    found: dict[str, float] = {}
    for token, logprob in top:
        found.setdefault(tokenizer.token_text(token), finite(logprob))
    found.setdefault(text, finite(value))
    return found

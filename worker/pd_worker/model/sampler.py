"""Draws one token for each row of logits.

Order: log-probabilities of the raw logits; bias, bans, penalties, grammar (logits.py);
temperature, top_k, top_p, min_p, each over what the one before left, as in transformers; then the
inverse of the cumulative distribution in vocabulary order at the row's own uniform number. Filters
keep or drop tokens by a threshold on their probability, so ties and company do not matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pd_worker.core.batch import Ints, SamplingBatch
from pd_worker.model.counter_rng import uniforms
from pd_worker.model.logits import adjust, touched

HEAD = 1024
"""Tokens that are looked at first for top_p; a row whose mass is not in them is sorted."""


def draw(logits: torch.Tensor, sampling: SamplingBatch) -> torch.Tensor:
    """[S] token ids for float32 `logits` [S, vocab], which are left as they are."""
    if touched(sampling):
        logits = logits.clone()
        adjust(logits, sampling)
    tokens = logits.argmax(-1)
    hot = np.flatnonzero(sampling.temperature > 0)
    if len(hot):
        at = torch.from_numpy(hot).to(logits.device)
        tokens[at] = _draw_hot(logits[at], hot, sampling)
    return tokens


def _draw_hot(logits: torch.Tensor, rows: Ints, sampling: SamplingBatch) -> torch.Tensor:
    """Tokens for the rows that have a temperature; `logits` are theirs, to be changed."""

    def column(values: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(values[rows]).to(logits.device)[:, None]

    probs = (logits / column(sampling.temperature)).softmax(-1)
    top_k, top_p, min_p = (
        column(values) for values in (sampling.top_k, sampling.top_p, sampling.min_p)
    )
    filtered = ((top_k < probs.shape[-1]) | (top_p < 1) | (min_p > 0)).view(-1)
    if bool(filtered.any()):
        kept = probs[filtered]
        floor = _floor(kept, top_k[filtered], top_p[filtered], min_p[filtered])
        probs[filtered] = kept.masked_fill_(kept < floor, 0)
    at = uniforms(sampling.seeds[rows], sampling.positions[rows])
    return _invert(probs, torch.from_numpy(at).to(logits.device))


def _floor(
    probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor
) -> torch.Tensor:
    """[R, 1] least probability that is kept in each row; the most probable token always is."""
    vocab_size = probs.shape[-1]
    head = probs.topk(min(HEAD, vocab_size)).values
    floor, enough = _head_floor(head, top_k, top_p, vocab_size)
    short = ~enough.view(-1)
    if bool(short.any()):
        ordered = probs[short].sort(descending=True).values
        floor[short] = _head_floor(ordered, top_k[short], top_p[short], vocab_size)[0]
    return torch.maximum(floor, min_p * head[:, :1])


def _head_floor(
    head: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Floor of top_k and top_p from the largest probabilities in order, and for which rows those
    were enough to tell."""
    length = head.shape[-1]
    sums = head.double().cumsum(-1)
    last = (top_k - 1).clamp(max=length - 1)
    known = (top_k <= length) | (length == vocab_size)
    mass = torch.where(known, sums.gather(-1, last), 1.0)
    reached = (sums < top_p.double() * mass).sum(-1, keepdim=True)
    nucleus = head.gather(-1, reached.clamp(max=length - 1))
    floor = torch.where(top_p < 1, nucleus, 0.0)
    floor = torch.maximum(floor, torch.where(known, head.gather(-1, last), 0.0))
    unlimited = (top_k >= vocab_size) & ((top_p >= 1) | (reached < length))
    return floor, known | unlimited


def _invert(probs: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """[R] tokens at which the cumulative sums of `probs` [R, vocab] pass `at` [R], in [0, 1)."""
    sums = probs.double().cumsum(-1)
    total = sums[:, -1:]
    target = torch.minimum(at[:, None] * total, torch.nextafter(total, torch.zeros_like(total)))
    found = torch.searchsorted(sums, target, right=True)
    return found.clamp(max=probs.shape[-1] - 1).view(-1)

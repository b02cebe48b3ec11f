"""From the requests of a step to the arrays that the sampler works on. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pd_worker.core.batch import SamplingBatch
from pd_worker.core.req import Req


def sampling_batch(reqs: list[Req], vocab_size: int, eos_ids: Sequence[int]) -> SamplingBatch:
    """Arrays for drawing the next token of each of `reqs`.

    The index of that token follows from the tokens computed, not from those received: with overlap
    the last one may still be on the device.
    """
    params = [req.sampling for req in reqs]
    positions = [req.num_computed - req.num_prompt for req in reqs]
    return SamplingBatch(
        temperature=np.array([0.0 if p.greedy else p.temperature for p in params], np.float32),
        top_k=np.array([vocab_size if p.top_k == -1 else p.top_k for p in params], np.int64),
        top_p=np.array([p.top_p for p in params], np.float32),
        min_p=np.array([p.min_p for p in params], np.float32),
        seeds=np.array([req.seed for req in reqs], np.int64),
        positions=np.array(positions, np.int64),
        num_logprobs=np.array([req.message.num_logprobs for req in reqs], np.int64),
        repetition=np.array([p.repetition_penalty for p in params], np.float32),
        presence=np.array([p.presence_penalty for p in params], np.float32),
        frequency=np.array([p.frequency_penalty for p in params], np.float32),
        history=[
            (req.input_ids, req.output_ids) if req.sampling.penalised else None for req in reqs
        ],
        bias=[p.logit_bias for p in params],
        banned=[
            (*eos_ids, *p.stop_token_ids) if position < p.min_new_tokens else ()
            for p, position in zip(params, positions, strict=True)
        ],
        mask=_grammar_mask(reqs, vocab_size),
    )


def _grammar_mask(reqs: list[Req], vocab_size: int) -> npt.NDArray[np.int32] | None:
    if all(req.matcher is None for req in reqs):
        return None
    mask = np.full((len(reqs), -(-vocab_size // 32)), -1, np.int32)
    for row, req in zip(mask, reqs, strict=True):
        if req.matcher is not None:
            req.matcher.fill_mask(row)
    return mask

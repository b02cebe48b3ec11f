"""What a request may do to its logits before a token is drawn: bias, bans, penalties, grammar.

All functions change `logits` [S, vocab] in place, each row by its own settings.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from pd_worker.core.batch import SamplingBatch


def touched(sampling: SamplingBatch) -> bool:
    """True where some row's logits are to be changed."""
    return (
        sampling.mask is not None
        or any(sampling.bias)
        or any(sampling.banned)
        or any(past is not None for past in sampling.history)
    )


def adjust(logits: torch.Tensor, sampling: SamplingBatch) -> None:
    """Apply all of it, the grammar last. Where bans and grammar leave a row no token the grammar
    alone decides."""
    allowed = None if sampling.mask is None else _unpack(sampling.mask, logits)
    grammatical = None if allowed is None else logits.masked_fill(~allowed, float("-inf"))
    add_bias(logits, sampling.bias)
    ban(logits, sampling.banned)
    penalise(logits, sampling)
    if allowed is not None and grammatical is not None:
        logits.masked_fill_(~allowed, float("-inf"))
        stuck = logits.amax(-1) == float("-inf")
        logits[stuck] = grammatical[stuck]


def add_bias(logits: torch.Tensor, bias: list[dict[int, float]]) -> None:
    """Add each row's bias to the tokens it names."""
    for row, of_row in zip(logits, bias, strict=True):
        if of_row:
            row[_ids(list(of_row), row)] += row.new_tensor(list(of_row.values()))


def ban(logits: torch.Tensor, banned: list[tuple[int, ...]]) -> None:
    """Make tokens impossible."""
    for row, of_row in zip(logits, banned, strict=True):
        if of_row:
            row[_ids(of_row, row)] = float("-inf")


def penalise(logits: torch.Tensor, sampling: SamplingBatch) -> None:
    """Repetition penalty over prompt and output as in transformers (a positive logit is divided,
    a negative one multiplied); presence and frequency penalty over the output as in OpenAI's API.
    """
    settings = zip(
        sampling.history,
        sampling.repetition.tolist(),
        sampling.presence.tolist(),
        sampling.frequency.tolist(),
        strict=True,
    )
    for row, (past, repetition, presence, frequency) in zip(logits, settings, strict=True):
        if past is None:
            continue
        prompt, output = (np.asarray(ids, np.int64) for ids in past)
        if repetition != 1.0:
            seen = _ids(np.unique(np.concatenate([prompt, output])), row)
            scores = row[seen]
            row[seen] = torch.where(scores > 0, scores / repetition, scores * repetition)
        if presence or frequency:
            ids, counts = np.unique(output, return_counts=True)
            row[_ids(ids, row)] -= presence + frequency * row.new_tensor(counts)


def _ids(
    ids: npt.NDArray[np.int64] | tuple[int, ...] | list[int], like: torch.Tensor
) -> torch.Tensor:
    return torch.as_tensor(ids, dtype=torch.int64).to(like.device)


def _unpack(mask: npt.NDArray[np.int32], logits: torch.Tensor) -> torch.Tensor:
    """Bits to [S, vocab] booleans."""
    bits = np.unpackbits(mask.view(np.uint8), axis=-1, bitorder="little")
    return torch.from_numpy(bits[:, : logits.shape[-1]]).bool().to(logits.device)

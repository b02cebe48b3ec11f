"""Log-probabilities of chosen and of most probable tokens, from raw logits."""

from __future__ import annotations

import numpy as np
import torch

from pd_worker.core.batch import Floats, Ints, PromptLogprobs
from pd_worker.messages import TopLogprobs


def token_logprobs(
    logits: torch.Tensor, tokens: torch.Tensor, counts: Ints
) -> tuple[Floats, list[TopLogprobs]]:
    """Of `tokens` [S] under float32 `logits` [S, vocab]: the log-probability where counts[s] >= 0,
    else NaN; and the counts[s] most probable tokens."""
    scores = np.full(len(counts), np.nan, np.float32)
    top: list[TopLogprobs] = [[] for _ in counts]
    wanted = np.flatnonzero(counts >= 0)
    if len(wanted):
        rows = torch.from_numpy(wanted).to(logits.device)
        chosen, best = _scored(logits[rows], tokens[rows], counts[wanted])
        scores[wanted] = chosen
        for s, tops in zip(wanted.tolist(), best, strict=True):
            top[s] = tops
    return scores, top


def prompt_logprobs(
    logits: torch.Tensor, targets: list[list[int]], counts: list[int]
) -> list[PromptLogprobs]:
    """Of prompt tokens: `logits` holds the rows that score each of `targets`, end to end."""
    results, start = [], 0
    for of_request, count in zip(targets, counts, strict=True):
        tokens = torch.tensor(of_request, dtype=torch.int64, device=logits.device)
        rows = logits[start : start + len(of_request)]
        chosen, top = _scored(rows, tokens, np.full(len(of_request), count))
        results.append(PromptLogprobs(logprobs=chosen.tolist(), top=top))
        start += len(of_request)
    return results


def _scored(
    logits: torch.Tensor, tokens: torch.Tensor, counts: Ints
) -> tuple[Floats, list[TopLogprobs]]:
    total = logits.logsumexp(-1, keepdim=True)
    chosen: Floats = (logits.gather(-1, tokens[:, None]) - total).view(-1).cpu().numpy()
    most = min(int(counts.max(initial=0)), logits.shape[-1])
    best = logits.topk(most)
    ids, scores = best.indices.tolist(), (best.values - total).tolist()
    pairs = zip(ids, scores, counts.tolist(), strict=True)
    return chosen, [list(zip(i[:n], s[:n], strict=True)) for i, s, n in pairs]

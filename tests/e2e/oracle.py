"""What transformers says to an answer of ours."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from tests.e2e.fleet import Case, Reply


def check(case: Case, reply: Reply, model: PreTrainedModel) -> None:
    """The reply is what greedy search of transformers gives.

    One forward over prompt and reply tells: if each token is the arg-max behind those before it,
    greedy search takes the same way from the first token to the last.
    """
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends])
    with torch.inference_mode():
        ids = torch.tensor([case.prompt + reply.token_ids])
        logits = model(ids).logits[0, len(case.prompt) - 1 : -1]
    assert reply.token_ids == logits.argmax(-1).tolist()
    scores = logits.log_softmax(-1).gather(1, torch.tensor(reply.token_ids)[:, None])[:, 0]
    assert reply.logprobs == pytest.approx(scores.tolist(), abs=1e-3)
    ended = reply.token_ids[-1] in ends
    assert reply.finish == ("stop" if ended else "length")
    assert ended or len(reply.token_ids) == case.max_tokens
    assert not set(reply.token_ids[:-1]) & ends
    assert reply.prompt_tokens == len(case.prompt)
    assert reply.completion_tokens == len(reply.token_ids)
    assert 0 <= reply.cached_tokens < len(case.prompt)

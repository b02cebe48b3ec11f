"""Bias, bans, penalties and grammar masks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from pd_worker.model.logits import adjust, touched
from tests.worker.model.driver import Job, sampling_batch

VOCAB = 70
PROMPT, OUTPUT = [3, 5, 5, 9], [9, 2, 2, 2, 69]


def adjusted(mask: np.ndarray | None = None, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a row before and after."""
    before = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    job = Job(row=0, prompt=PROMPT, output=OUTPUT, options=options)
    after = before.clone()
    adjust(after, replace(sampling_batch([job], VOCAB), mask=mask))
    return before[0], after[0]


def mask_of(*allowed: int) -> np.ndarray:
    bits = np.zeros((1, 96), np.uint8)
    bits[0, list(allowed)] = 1
    return np.packbits(bits, axis=-1, bitorder="little").view(np.int32)


def test_repetition_penalty_is_that_of_transformers() -> None:
    before, after = adjusted(penalised=True, repetition=1.7)
    expected = RepetitionPenaltyLogitsProcessor(1.7)(
        torch.tensor([PROMPT + OUTPUT]), before[None].clone()
    )
    assert torch.allclose(after, expected[0])


def test_presence_and_frequency_count_the_output_alone() -> None:
    before, after = adjusted(penalised=True, presence=0.5, frequency=0.25)
    change = before - after
    assert change[[2, 9, 69]].tolist() == pytest.approx([0.5 + 0.75, 0.75, 0.75], abs=1e-6)
    assert torch.count_nonzero(change) == 3


def test_bias_is_added() -> None:
    before, after = adjusted(bias={4: 2.5, 69: -100.0})
    assert (after - before)[[4, 69]].tolist() == pytest.approx([2.5, -100.0], abs=1e-4)


def test_banned_tokens_are_impossible() -> None:
    _, after = adjusted(banned=(1, 1, 68))
    assert torch.isinf(after).nonzero().view(-1).tolist() == [1, 68]


def test_a_grammar_leaves_only_its_tokens() -> None:
    before, after = adjusted(mask=mask_of(0, 31, 32, 69), bias={5: 100.0})
    assert after.isfinite().nonzero().view(-1).tolist() == [0, 31, 32, 69]
    assert torch.equal(after[[0, 31]], before[[0, 31]])


def test_the_grammar_rules_where_bans_leave_nothing() -> None:
    _, after = adjusted(mask=mask_of(7), banned=(7,))
    assert after.isfinite().nonzero().view(-1).tolist() == [7]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"bias": {1: 1.0}}, True),
        ({"banned": (1,)}, True),
        ({"penalised": True}, True),
    ],
    ids=["nothing", "bias", "banned", "penalised"],
)
def test_plain_rows_are_not_touched(options: dict[str, Any], expected: bool) -> None:
    job = Job(row=0, prompt=PROMPT, options=options)
    assert touched(sampling_batch([job], VOCAB)) is expected

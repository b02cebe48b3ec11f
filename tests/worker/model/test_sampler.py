"""Drawing follows the distribution that was asked for, and depends on the request alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from pd_worker.core.batch import SamplingBatch
from pd_worker.model import sampler
from pd_worker.model.counter_rng import mix, uniforms
from pd_worker.model.sampler import draw
from tests.worker.model.driver import Job, sampling_batch

VOCAB = 40
DRAWS = 4000


def row(seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 2


def batch(count: int, vocab: int = VOCAB, **options: Any) -> SamplingBatch:
    jobs = [Job(row=0, prompt=[0], options={"temperature": 1.0, **options}) for _ in range(count)]
    return replace(sampling_batch(jobs, vocab), positions=np.arange(count))


def frequencies(logits: torch.Tensor, **options: Any) -> torch.Tensor:
    drawn = draw(logits.expand(DRAWS, -1), batch(DRAWS, len(logits), **options))
    return torch.bincount(drawn, minlength=len(logits)) / DRAWS


def warped(logits: torch.Tensor, *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0,
           min_p: float = 0.0) -> torch.Tensor:  # fmt: skip
    """What transformers makes of it."""
    scores = logits[None]
    for warper in (
        hf.TemperatureLogitsWarper(temperature),
        *([hf.TopKLogitsWarper(top_k)] if top_k else []),
        *([hf.TopPLogitsWarper(top_p)] if top_p < 1 else []),
        *([hf.MinPLogitsWarper(min_p)] if min_p else []),
    ):
        scores = warper(None, scores)
    return scores.softmax(-1)[0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0},
        {"top_k": 5},
        {"top_p": 0.7},
        {"min_p": 0.1},
        {"temperature": 1.5, "top_k": 10, "top_p": 0.8, "min_p": 0.05},
        {"top_k": 1},
        {"top_p": 1e-6},
    ],
    ids=str,
)
@pytest.mark.parametrize("head", [1024, 4], ids=["in head", "beyond head"])
def test_frequencies_are_those_of_transformers(
    options: dict[str, Any], head: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "HEAD", head)
    logits = row(3)
    expected, got = warped(logits, **options), frequencies(logits, **options)
    assert torch.equal(got > 0, (got > 0) & (expected > 0))
    assert chi_square(got, expected) < 2.0


def chi_square(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Per degree of freedom, over tokens that are expected at least five times."""
    common = expected * DRAWS >= 5
    freedom = max(1, int(common.sum()) - 1)
    return float(((got - expected)[common] ** 2 / expected[common]).sum()) * DRAWS / freedom


def test_a_row_does_not_depend_on_its_company() -> None:
    kinds = [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 1.3, "top_k": 7, "seed": 6},
        {"temperature": 0.7, "top_p": 0.6, "seed": 7, "bias": {3: 4.0}},
        {"temperature": 1.0, "min_p": 0.2, "seed": 8, "banned": (1, 2)},
    ]
    jobs = [Job(row=0, prompt=[1, 2], options=kind) for kind in kinds * 3]
    for i, job in enumerate(jobs):
        job.output = list(range(i))
    logits = torch.stack([row(i) for i in range(len(jobs))])
    together = draw(logits, sampling_batch(jobs, VOCAB))
    alone = [draw(logits[i : i + 1], sampling_batch([job], VOCAB)) for i, job in enumerate(jobs)]
    assert together.tolist() == torch.cat(alone).tolist()


def test_equal_probabilities_are_kept_together() -> None:
    assert (frequencies(torch.zeros(8), top_k=3) > 0).all()


def test_logits_are_left_as_they_are() -> None:
    logits = row()[None].clone()
    draw(logits, batch(1, top_k=3, bias={1: 5.0}, banned=(2,)))
    assert torch.equal(logits[0], row())


def test_no_rows_are_no_tokens() -> None:
    assert draw(torch.empty(0, VOCAB), batch(0)).tolist() == []


def test_a_row_of_nan_spoils_no_other() -> None:
    logits = torch.stack([row(1), torch.full((VOCAB,), float("nan"))])
    options = {"top_p": 0.9, "seed": 3}
    assert draw(logits, batch(2, **options))[0] == draw(logits[:1], batch(1, **options))[0]


def test_uniforms_are_even_and_unrelated() -> None:
    seeds, positions = np.repeat(np.arange(200), 200), np.tile(np.arange(200), 200)
    numbers = uniforms(seeds, positions).reshape(200, 200)
    assert ((numbers >= 0) & (numbers < 1)).all()
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert ((counts - 2000) ** 2 / 2000).sum() < 45
    assert abs(np.corrcoef(numbers[:-1].ravel(), numbers[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(numbers[:, :-1].ravel(), numbers[:, 1:].ravel())[0, 1]) < 0.02


def test_seeds_of_all_signs_and_sizes_count() -> None:
    seeds = np.array([0, 1, -1, 2**62, -(2**62), 2**63 - 1])
    assert len(set(uniforms(seeds, np.zeros(6, np.int64)))) == 6


def test_the_hash_is_splitmix64() -> None:
    first = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    counter = np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert mix(counter).tolist() == first

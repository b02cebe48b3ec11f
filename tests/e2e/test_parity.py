"""PD = unified = transformers: the same tokens, scores, counts and reasons for the same request.

Each arrangement starts real processes of a small random Llama in float32; 312 random requests in
all. The real model does a smaller round of the same in test_real_model.py.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.e2e.fleet import Case, ask_all, up
from tests.e2e.oracle import check

CASES = 52


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """How the workers are set up and how hard they are asked."""

    name: str
    args: tuple[str, ...]
    concurrency: int


ARRANGEMENTS = [
    Arrangement(
        name="shm page 16 chunk 512",
        args=("--kv-transport", "shm", "--page-size", "16"),
        concurrency=4,
    ),
    Arrangement(
        name="mooncake page 16 chunk 64",
        args=("--kv-transport", "mooncake", "--chunked-prefill-size", "64"),
        concurrency=8,
    ),
    Arrangement(
        name="shm page 1 chunk 100 overlap",
        args=(
            "--kv-transport",
            "shm",
            "--page-size",
            "1",
            "--chunked-prefill-size",
            "100",
            "--overlap",
        ),
        concurrency=16,
    ),
    Arrangement(
        name="mooncake page 64 chunk 33 overlap",
        args=(
            "--kv-transport",
            "mooncake",
            "--page-size",
            "64",
            "--chunked-prefill-size",
            "33",
            "--overlap",
        ),
        concurrency=16,
    ),
    Arrangement(
        name="two pairs, auto, small pools that retract",
        args=("--prefill", "2", "--decode", "2", "--max-total-tokens", "2048"),
        concurrency=16,
    ),
    Arrangement(
        name="one at a time, checksum, no prefix cache",
        args=("--kv-checksum", "--no-prefix-cache", "--chunked-prefill-size", "17"),
        concurrency=1,
    ),
]


def random_cases(seed: int, vocab_size: int) -> list[Case]:
    """Prompts of 1 to 700 tokens; a third begins like an earlier one."""
    rng = random.Random(seed)
    cases: list[Case] = []
    for _ in range(CASES):
        length = int(rng.choice([rng.uniform(1, 40), rng.uniform(1, 700)]))
        prompt = [rng.randrange(10, vocab_size) for _ in range(length)]
        if cases and rng.random() < 0.35:
            prompt = (rng.choice(cases).prompt + prompt)[:700]
        cases.append(Case(prompt=prompt, max_tokens=rng.randint(1, 24)))
    return cases


@pytest.fixture(scope="module")
def oracle(tiny_model) -> LlamaForCausalLM:
    torch.set_num_threads(1)
    return LlamaForCausalLM.from_pretrained(tiny_model, dtype=torch.float32).eval()


@pytest.mark.slow
@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda each: each.name)
def test_pair_gives_the_tokens_of_transformers(arrangement, tiny_model, oracle, tmp_path):
    cases = random_cases(len(arrangement.name), oracle.config.vocab_size)
    with up(tiny_model, tmp_path, "--dtype", "float32", *arrangement.args) as pair:
        replies = ask_all(pair.url, cases, arrangement.concurrency)
    for case, reply in zip(cases, replies, strict=True):
        check(case, reply, oracle)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", ["--overlap", "--no-overlap"])
def test_unified_gives_the_tokens_of_transformers(overlap, tiny_model, oracle, tmp_path):
    cases = random_cases(7, oracle.config.vocab_size)
    args = ("--unified", "1", "--dtype", "float32", "--chunked-prefill-size", "128", overlap)
    with up(tiny_model, tmp_path, *args) as unified:
        replies = ask_all(unified.url, cases, concurrency=8)
    for case, reply in zip(cases, replies, strict=True):
        check(case, reply, oracle)

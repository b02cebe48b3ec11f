"""The real model: a pair, shm and mooncake, against transformers; and that an idle pair rests."""

from __future__ import annotations

import random
import time

import psutil
import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM

from tests.e2e.fleet import Case, ask_all, up
from tests.e2e.oracle import check

IDLE_WINDOW_S = 10.0


def real_cases(count: int) -> list[Case]:
    """Random prompts of up to 200 tokens, some with a common beginning."""
    rng = random.Random(5)
    common = [rng.randrange(100, 49000) for _ in range(64)]
    return [
        Case(
            prompt=(common if i % 3 == 0 else [])
            + [rng.randrange(100, 49000) for _ in range(rng.randint(1, 136))],
            max_tokens=rng.randint(1, 16),
        )
        for i in range(count)
    ]


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("transport", ["shm", "mooncake"])
def test_real_model_in_a_pair(transport, small_model, tmp_path):
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32).eval()
    args = ("--dtype", "float32", "--kv-transport", transport, "--max-total-tokens", "8192")
    cases = real_cases(12)
    with up(small_model, tmp_path, *args, "--chunked-prefill-size", "96") as pair:
        replies = ask_all(pair.url, cases, concurrency=4)
        answer = OpenAI(base_url=f"{pair.url}/v1", api_key="-").chat.completions.create(
            model="smollm2-135m",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=24,
        )
    for case, reply in zip(cases, replies, strict=True):
        check(case, reply, model)
    assert answer.choices[0].message.content == "The capital of France is Paris."


@pytest.mark.slow
def test_an_idle_pair_uses_less_than_a_twentieth_of_a_core_a_process(pair):
    root = psutil.Process(pair.process.pid)
    processes = [root, *root.children(recursive=True)]
    ask_all(pair.url, [Case(prompt=[20, 30, 40], max_tokens=4)], concurrency=1)
    before = {process: sum(process.cpu_times()[:2]) for process in processes}
    start = time.monotonic()
    time.sleep(IDLE_WINDOW_S)  # the window of the measurement
    shares = {
        f"{process.pid} {process.cmdline()[2:6]}": (sum(process.cpu_times()[:2]) - used)
        / (time.monotonic() - start)
        for process, used in before.items()
    }
    assert len(shares) >= 6
    assert max(shares.values()) < 0.05, shares

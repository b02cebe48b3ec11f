"""The paged runner gives what transformers itself gives, token for token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pd_worker.core.batch import ForwardMode
from tests.worker.model.driver import Job
from tests.worker.model.tiny import FAMILIES, VOCAB, full_logprobs, greedy, make_driver, reference

TOKENS = 10


def prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng([length, seed]).integers(3, VOCAB, length).tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("chunk", [7, 32, 1000])
def test_greedy_tokens_are_those_of_generate(family: str, page_size: int, chunk: int) -> None:
    asked = prompt(75)
    driver = make_driver(family, page_size)
    job = Job(row=1, prompt=asked, max_new_tokens=TOKENS)
    assert driver.run([job], chunk=chunk) == [greedy(reference(family), asked, TOKENS)]


@pytest.mark.parametrize("family", FAMILIES)
def test_requests_of_one_batch_do_not_touch_each_other(family: str) -> None:
    asked = [prompt(length) for length in (1, 2, 15, 16, 17, 40, 90)]
    driver = make_driver(family, 16)
    jobs = [Job(row=i + 1, prompt=p, max_new_tokens=TOKENS) for i, p in enumerate(asked)]
    expected = [greedy(reference(family), p, TOKENS) for p in asked]
    assert driver.run(jobs, chunk=24) == expected


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_shared_prefix_is_computed_once(family: str, page_size: int) -> None:
    shared, driver = prompt(48), make_driver(family, page_size)
    first = Job(row=1, prompt=shared + prompt(5, 1), max_new_tokens=TOKENS)
    driver.run([first])
    pages = first.pages[: 48 // page_size]
    second = Job(
        row=2, prompt=shared + prompt(9, 2), max_new_tokens=TOKENS, computed=48, pages=pages
    )
    assert driver.run([second]) == [greedy(reference(family), second.prompt, TOKENS)]


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_reused_poisoned_pages_leave_no_trace(family: str) -> None:
    driver = make_driver(family, 16, num_pages=9)
    for seed in range(4):
        job = Job(row=1, prompt=prompt(70, seed), max_new_tokens=TOKENS)
        assert driver.run([job]) == [greedy(reference(family), job.prompt, TOKENS)]
        driver.allocator.free(job.pages)


def test_new_requests_may_join_and_leave_at_any_step() -> None:
    driver, model = make_driver("llama", 16), reference("llama")
    jobs = [Job(row=i + 1, prompt=prompt(9 + i), max_new_tokens=3 + i) for i in range(6)]
    running: list[Job] = []
    for newcomer in [*jobs, *[None] * 10]:
        if newcomer:
            driver.step([newcomer], [len(newcomer.prompt)], ForwardMode.EXTEND)
            running.append(newcomer)
        running = [job for job in running if not job.done]
        if running:
            driver.step(running, [1] * len(running), ForwardMode.DECODE)
    for job in jobs:
        assert job.output == greedy(model, job.prompt, len(job.output))


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_a_full_forward(family: str) -> None:
    job = Job(row=1, prompt=prompt(50), max_new_tokens=6, options={"num_logprobs": 5})
    make_driver(family, 16).run([job], chunk=20)
    expected = full_logprobs(reference(family), job.prompt + job.output)[49:-1]
    chosen = expected.gather(-1, torch.tensor(job.output)[:, None]).view(-1)
    assert job.logprobs == pytest.approx(chosen.tolist(), abs=1e-3)
    for row, top in zip(expected, job.top, strict=True):
        assert [score for _, score in top] == pytest.approx(row.topk(5).values.tolist(), abs=1e-3)
        assert [score for _, score in top] == sorted((s for _, s in top), reverse=True)


@pytest.mark.parametrize("chunk", [1, 13, 100])
def test_prompt_logprobs_are_those_of_a_full_forward(chunk: int) -> None:
    asked = prompt(40)
    job = Job(row=1, prompt=asked, prompt_logprobs=[], options={"num_logprobs": 2})
    other = Job(row=2, prompt=prompt(21))
    make_driver("gemma3", 16).run([other, job], chunk=chunk)
    expected = full_logprobs(reference("gemma3"), asked)[:-1]
    chosen = expected.gather(-1, torch.tensor(asked[1:])[:, None]).view(-1)
    assert job.prompt_logprobs == pytest.approx(chosen.tolist(), abs=1e-3)
    assert [len(top) for top in job.prompt_top] == [2] * 39


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_half_precision_stays_near_float32(family: str, dtype: torch.dtype) -> None:
    job = Job(row=1, prompt=prompt(50), max_new_tokens=1, options={"num_logprobs": 0})
    make_driver(family, 16, dtype=dtype).run([job], chunk=20)
    exact = full_logprobs(reference(family), job.prompt)[-1]
    assert job.logprobs[0] == pytest.approx(float(exact[job.output[0]]), abs=0.5)

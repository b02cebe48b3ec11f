"""The fake runner is a function of the request alone, and of every byte of its KV."""

from __future__ import annotations

import numpy as np
import pytest

from pd_worker.memory.allocator import PageAllocator
from pd_worker.model.runner_fake import FakeKVPool, FakeRunner, fake_geometry
from tests.worker.model.driver import Driver, Job


def make(page_size: int = 4, num_pages: int = 64) -> tuple[FakeRunner, Driver]:
    geometry = fake_geometry()
    pool = FakeKVPool(geometry.kv_layout(num_pages, page_size))
    runner = FakeRunner(geometry, pool, num_rows=8)
    return runner, Driver(runner, PageAllocator(num_pages, page_size))


def prompts(count: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(0, 512, size).tolist() for size in rng.integers(1, 40, count)]


def alone(prompt: list[int], **job: object) -> list[int]:
    return make()[1].run([Job(row=1, prompt=prompt, **job)])[0]


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_tokens_do_not_depend_on_pages_chunks_or_company(page_size: int, chunk: int) -> None:
    asked = prompts(4)
    _, driver = make(page_size, 256)
    together = driver.run([Job(row=i + 1, prompt=p) for i, p in enumerate(asked)], chunk=chunk)
    assert together == [alone(prompt) for prompt in asked]


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("slot", [0, 3])
def test_any_changed_byte_changes_the_tokens(layer: int, slot: int) -> None:
    prompt = prompts(1)[0][:8]
    runner, driver = make()
    job = Job(row=1, prompt=prompt, max_new_tokens=1)
    driver.run([job])
    runner.kv_pool.words[job.pages[0], layer, 1, 0, slot, 1] ^= 1
    job.max_new_tokens = 6
    assert driver.run([job])[0] != alone(prompt, max_new_tokens=6)


def test_swapped_pages_change_the_tokens() -> None:
    prompt = prompts(1)[0][:8]
    _, driver = make()
    job = Job(row=1, prompt=prompt, max_new_tokens=1)
    driver.run([job])
    job.pages[:2] = job.pages[1::-1]
    job.max_new_tokens = 6
    assert driver.run([job])[0] != alone(prompt, max_new_tokens=6)


def test_saved_pages_can_be_loaded_elsewhere() -> None:
    prompt = prompts(1)[0]
    runner, driver = make()
    job = Job(row=1, prompt=prompt, max_new_tokens=2)
    driver.run([job])
    old, data = job.pages, runner.kv_pool.save(job.pages)
    job.pages = driver.allocator.alloc(len(old))
    runner.kv_pool.load(job.pages, data)
    runner.kv_pool.poison(old)
    job.max_new_tokens = 6
    assert driver.run([job])[0] == alone(prompt, max_new_tokens=6)


def test_seed_and_position_decide_sampled_tokens() -> None:
    prompt, hot = prompts(1)[0], {"temperature": 1.0, "seed": 7}
    first = alone(prompt, options=hot)
    assert alone(prompt, options=hot) == first
    assert alone(prompt, options={**hot, "seed": 8}) != first
    assert alone(prompt) != first


def test_banned_tokens_are_not_drawn() -> None:
    prompt = prompts(1)[0]
    banned = tuple(alone(prompt))
    assert not set(alone(prompt, options={"banned": banned})) & set(banned)


def test_prompt_scores_do_not_depend_on_chunks() -> None:
    prompt = prompts(1)[0]
    scores = []
    for chunk in (1, 5, 100):
        job = Job(row=1, prompt=prompt, prompt_logprobs=[], options={"num_logprobs": 2})
        make()[1].run([job], chunk=chunk)
        scores.append((job.prompt_logprobs, job.prompt_top, job.logprobs, job.top))
    assert len(scores[0][0]) == len(prompt) - 1
    assert scores[0] == scores[1] == scores[2]

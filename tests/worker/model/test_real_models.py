"""The real models give what transformers gives for them, in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pd_worker.config import ModelConfig, cache_dir
from pd_worker.model.loader import load_model
from tests.worker.model.driver import Job
from tests.worker.model.tiny import driver_of, full_logprobs, greedy

GEMMA3 = cache_dir() / "models/gemma3-270m"


def run(folder: Path, prompts: list[list[int]], count: int, page_size: int) -> list[Job]:
    loaded = load_model(ModelConfig(model=str(folder)), lambda fraction, what: None)
    driver = driver_of(loaded.module, loaded.geometry, page_size, 4096 // page_size)
    jobs = [
        Job(row=i + 1, prompt=prompt, max_new_tokens=count, options={"num_logprobs": 0})
        for i, prompt in enumerate(prompts)
    ]
    driver.run(jobs, chunk=64)
    return jobs


@pytest.mark.model
def test_smollm2_answers_like_transformers(small_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(small_model)
    reference = AutoModelForCausalLM.from_pretrained(small_model, dtype=torch.float32)
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in ("What is the capital of France?", "Name three colors. " * 20)
    ]
    jobs = run(small_model, prompts, 7, 16)
    assert "Paris" in tokenizer.decode(jobs[0].output)
    for job in jobs:
        assert job.output == greedy(reference, job.prompt, 7)
        scores = full_logprobs(reference, job.prompt + job.output)[len(job.prompt) - 1 : -1]
        chosen = scores.gather(-1, torch.tensor(job.output)[:, None]).view(-1)
        assert job.logprobs == pytest.approx(chosen.tolist(), abs=1e-3)


@pytest.mark.slow
@pytest.mark.skipif(not GEMMA3.is_dir(), reason="gemma3-270m is not fetched")
def test_gemma3_answers_like_transformers() -> None:
    tokenizer = AutoTokenizer.from_pretrained(GEMMA3)
    reference = AutoModelForCausalLM.from_pretrained(GEMMA3, dtype=torch.float32)
    prompt = tokenizer("Paris is the capital of", return_attention_mask=False)["input_ids"]
    (job,) = run(GEMMA3, [prompt], 3, 64)
    assert tokenizer.decode(job.output).startswith(" France")
    assert job.output == greedy(reference, prompt, 3)

"""A minimal scheduler for tests: runs requests through a runner without any of ours around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pd_worker.core.batch import BatchResult, ForwardBatch, ForwardMode, SamplingBatch
from pd_worker.memory.allocator import PageAllocator
from pd_worker.memory.pages import Pages, empty_pages, page_slots, pages_for
from pd_worker.model.base import Runner


@dataclass(slots=True, kw_only=True)
class Job:
    """One request; `pages` may begin with shared pages that hold `computed` tokens already."""

    row: int
    prompt: list[int]
    max_new_tokens: int = 8
    computed: int = 0
    pages: Pages = field(default_factory=empty_pages)
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[Any] = field(default_factory=list)
    prompt_logprobs: list[float] | None = None
    prompt_top: list[Any] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of SamplingBatch for this request, as scalars."""

    @property
    def done(self) -> bool:
        return len(self.output) >= self.max_new_tokens


def sampling_batch(jobs: list[Job], vocab_size: int, **fields: Any) -> SamplingBatch:
    """Greedy unless the jobs' options say otherwise."""

    def column(name: str, default: float, dtype: type) -> Any:
        return np.array([job.options.get(name, default) for job in jobs], dtype)

    return SamplingBatch(
        temperature=column("temperature", 0.0, np.float32),
        top_k=column("top_k", vocab_size, np.int64),
        top_p=column("top_p", 1.0, np.float32),
        min_p=column("min_p", 0.0, np.float32),
        seeds=column("seed", 0, np.int64),
        positions=np.array([len(job.output) for job in jobs], np.int64),
        num_logprobs=column("num_logprobs", -1, np.int64),
        repetition=column("repetition", 1.0, np.float32),
        presence=column("presence", 0.0, np.float32),
        frequency=column("frequency", 0.0, np.float32),
        history=[
            (job.prompt, list(job.output)) if job.options.get("penalised") else None for job in jobs
        ],
        bias=[job.options.get("bias", {}) for job in jobs],
        banned=[job.options.get("banned", ()) for job in jobs],
        mask=fields.get("mask"),
    )


class Driver:
    """Runs jobs; owns the pages."""

    def __init__(self, runner: Runner, allocator: PageAllocator) -> None:
        self.runner, self.allocator = runner, allocator
        self.page_size = allocator.page_size
        self.vocab_size = runner.geometry.vocab_size

    def step(self, jobs: list[Job], lengths: list[int], mode: ForwardMode) -> BatchResult:
        """One forward of `lengths` more tokens of each job."""
        ends = [job.computed + length for job, length in zip(jobs, lengths, strict=True)]
        for job, end in zip(jobs, ends, strict=True):
            more = self.allocator.alloc(pages_for(end, self.page_size) - len(job.pages))
            assert more is not None
            job.pages = np.concatenate([job.pages, more])
        sampled = [b for b, job in enumerate(jobs) if ends[b] >= len(job.prompt)]
        scored = [b for b, job in enumerate(jobs) if job.prompt_logprobs is not None]
        scored = scored if mode is ForwardMode.EXTEND else []
        result = self.runner.forward(self._batch(jobs, ends, mode, sampled, scored))
        for b, scores in zip(scored, result.prompt, strict=True):
            jobs[b].prompt_logprobs.extend(scores.logprobs)
            jobs[b].prompt_top.extend(scores.top)
        for s, b in enumerate(sampled):
            jobs[b].output.append(int(result.tokens[s]))
            jobs[b].logprobs.append(float(result.logprobs[s]))
            jobs[b].top.append(result.top[s])
        for job, end in zip(jobs, ends, strict=True):
            job.computed = end
        return result

    def _batch(
        self,
        jobs: list[Job],
        ends: list[int],
        mode: ForwardMode,
        sampled: list[int],
        scored: list[int],
    ) -> ForwardBatch:
        starts = [job.computed for job in jobs]
        width = max(len(job.pages) for job in jobs)
        table = np.zeros((len(jobs), width), np.int32)
        for line, job in zip(table, jobs, strict=True):
            line[: len(job.pages)] = job.pages
        ids = [
            token
            for job, start, end in zip(jobs, starts, ends, strict=True)
            for token in job.prompt[start:end]
        ]
        return ForwardBatch(
            mode=mode,
            rows=np.array([job.row for job in jobs], np.int64),
            prefix_lens=np.array(starts, np.int64),
            extend_lens=np.array(ends, np.int64) - np.array(starts, np.int64),
            input_ids=np.array(ids if mode is ForwardMode.EXTEND else [], np.int64),
            out_slots=np.concatenate(
                [
                    page_slots(job.pages, self.page_size, start, end)
                    for job, start, end in zip(jobs, starts, ends, strict=True)
                ]
            ),
            page_table=table,
            sampled=np.array(sampled, np.int64),
            sampling=sampling_batch([jobs[b] for b in sampled], self.vocab_size),
            prompt_logprobs=np.array(scored, np.int64),
            prompt_targets=[jobs[b].prompt[starts[b] + 1 : ends[b] + 1] for b in scored],
            prompt_num_logprobs=[max(jobs[b].options.get("num_logprobs", 0), 0) for b in scored],
        )

    def run(self, jobs: list[Job], *, chunk: int = 10_000) -> list[list[int]]:
        """All jobs to their end: prompts in chunks, several at a time, then decode together."""
        while waiting := [job for job in jobs if job.computed < len(job.prompt)]:
            lengths = [min(chunk, len(job.prompt) - job.computed) for job in waiting]
            self.step(waiting, lengths, ForwardMode.EXTEND)
        while running := [job for job in jobs if not job.done]:
            self.step(running, [1] * len(running), ForwardMode.DECODE)
        return [job.output for job in jobs]

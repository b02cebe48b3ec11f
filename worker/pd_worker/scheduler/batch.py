"""ScheduleBatch: the requests of one step, and how it becomes a ForwardBatch.

Scheduler thread only. Preparing a batch counts its tokens as computed, because whatever is launched
later runs after it on the same device.
"""

from __future__ import annotations

import numpy as np

from pd_worker.core.batch import ForwardBatch, ForwardMode, Ints
from pd_worker.core.req import Req
from pd_worker.scheduler.request_memory import RequestMemory
from pd_worker.scheduler.sampling import sampling_batch


class ScheduleBatch:
    """The requests of one step, in order."""

    forward: ForwardBatch
    """Set by prepare_for_extend and prepare_for_decode."""

    def __init__(
        self, reqs: list[Req], memory: RequestMemory, vocab_size: int, eos_ids: tuple[int, ...]
    ) -> None:
        self.reqs, self.memory = reqs, memory
        self.mode = ForwardMode.DECODE
        self._vocab_size, self._eos_ids = vocab_size, eos_ids

    def __repr__(self) -> str:
        return f"ScheduleBatch({self.mode.value}, {self.reqs})"

    def prepare_for_extend(self, chunks: list[int]) -> None:
        """Compute the next `chunks[b]` prompt tokens of each request b."""
        self.mode = ForwardMode.EXTEND
        starts = [req.num_computed for req in self.reqs]
        ends = [start + chunk for start, chunk in zip(starts, chunks, strict=True)]
        last = [b for b, req in enumerate(self.reqs) if ends[b] == req.num_prompt]
        sampled = [b for b in last if self.reqs[b].sampling.max_new_tokens > 0]
        scored = [b for b, req in enumerate(self.reqs) if req.message.prompt_logprobs]
        targets = [self.reqs[b].input_ids[starts[b] + 1 : ends[b] + 1] for b in scored]
        self._launch(
            chunks,
            sampled,
            input_ids=np.concatenate(
                [
                    np.asarray(req.input_ids[start:end], np.int64)
                    for req, start, end in zip(self.reqs, starts, ends, strict=True)
                ]
            ),
            scored=scored,
            targets=targets,
        )

    def prepare_for_decode(self) -> None:
        """Compute the last token of each request and draw the next."""
        self.mode = ForwardMode.DECODE
        count = len(self.reqs)
        empty = np.empty(0, np.int64)
        self._launch([1] * count, list(range(count)), input_ids=empty, scored=[], targets=[])

    def _launch(
        self,
        lens: list[int],
        sampled: list[int],
        *,
        input_ids: Ints,
        scored: list[int],
        targets: list[list[int]],
    ) -> None:
        memory, prefix = self.memory, [req.num_computed for req in self.reqs]
        for req, length in zip(self.reqs, lens, strict=True):
            req.num_computed += length
            req.in_flight += 1
        self.forward = ForwardBatch(
            mode=self.mode,
            rows=np.array([req.row for req in self.reqs], np.int64),
            prefix_lens=np.array(prefix, np.int64),
            extend_lens=np.array(lens, np.int64),
            input_ids=input_ids,
            out_slots=np.concatenate(
                [
                    memory.slots(req, start, req.num_computed)
                    for req, start in zip(self.reqs, prefix, strict=True)
                ]
            ),
            page_table=memory.page_table(self.reqs),
            sampled=np.array(sampled, np.int64),
            sampling=sampling_batch(
                [self.reqs[b] for b in sampled], self._vocab_size, self._eos_ids
            ),
            prompt_logprobs=np.array(scored, np.int64),
            prompt_targets=targets,
            prompt_num_logprobs=[max(self.reqs[b].message.num_logprobs, 0) for b in scored],
        )

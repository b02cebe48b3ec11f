"""Runs a transformers model over the paged KV pool, one step at a time.

The model sees the new tokens of all requests laid end to end as one sequence with explicit
positions; only attention (attention.py) knows which belong together. One thread at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from pd_worker.core.batch import BatchResult, ForwardBatch, ForwardMode, Ints
from pd_worker.memory.kv_pool import KVPool
from pd_worker.memory.pages import Pages
from pd_worker.model.attention import AttentionBackend
from pd_worker.model.base import ModelGeometry
from pd_worker.model.logprobs import prompt_logprobs, token_logprobs
from pd_worker.model.sampler import draw


class ModelRunner:
    """A Runner (base.py) for `model`, which was loaded with the PAGED attention."""

    def __init__(
        self,
        model: torch.nn.Module,
        geometry: ModelGeometry,
        kv_pool: KVPool,
        attention: AttentionBackend,
        *,
        num_rows: int,
    ) -> None:
        """`num_rows`: rows of the ReqToTokenPool."""
        self.geometry, self.kv_pool = geometry, kv_pool
        self._model, self._attention = model, attention
        self._device = kv_pool.tensor.device
        self.token_buffer = torch.zeros(num_rows, dtype=torch.int64, device=self._device)
        """[num_rows]; the input of each row's next DECODE step."""

    @torch.inference_mode()
    def set_tokens(self, rows: Ints, tokens: Ints) -> None:
        """See Runner."""
        self.token_buffer[self._index(rows)] = self._index(tokens)

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch) -> BatchResult:
        """See Runner."""
        self.kv_pool.clear(entered_pages(batch, self.kv_pool.layout.page_size))
        logits = self._logits(batch)
        drawing, scoring = logits[: len(batch.sampled)], logits[len(batch.sampled) :]
        tokens = draw(drawing, batch.sampling)
        self.token_buffer[self._index(batch.rows[batch.sampled])] = tokens
        scores, top = token_logprobs(drawing, tokens, batch.sampling.num_logprobs)
        self._finish()
        return BatchResult(
            tokens=tokens.cpu().numpy(),
            logprobs=scores,
            top=top,
            prompt=prompt_logprobs(scoring, batch.prompt_targets, batch.prompt_num_logprobs),
        )

    def _logits(self, batch: ForwardBatch) -> torch.Tensor:
        """[rows, vocab] float32 logits of the rows of wanted_rows()."""
        if batch.mode is ForwardMode.DECODE:
            ids = self.token_buffer[self._index(batch.rows)]
        else:
            ids = self._index(batch.input_ids)
        output: Any = self._model(
            input_ids=ids[None],
            position_ids=self._index(positions(batch))[None],
            use_cache=False,
            logits_to_keep=self._index(wanted_rows(batch)),
            paged=self._attention.plan(batch),
        )
        logits: torch.Tensor = output.logits[0]
        return logits.float()

    def _finish(self) -> None:
        """Wait until the step's KV is in the pool: copying no tokens to the host, as after a chunk
        that draws none, waits for nothing, and a transfer engine reads the pages next."""
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _index(self, array: Ints) -> torch.Tensor:
        return torch.from_numpy(array).to(self._device)


def positions(batch: ForwardBatch) -> Ints:
    """[T] position of each new token in its request."""
    begins = np.cumsum(batch.extend_lens) - batch.extend_lens
    total = int(batch.extend_lens.sum())
    shift: Ints = np.repeat(batch.prefix_lens - begins, batch.extend_lens)
    return np.arange(total) + shift


def wanted_rows(batch: ForwardBatch) -> Ints:
    """Which of the T new tokens need logits: the last of each sampled request, then those before
    each of prompt_targets."""
    ends = np.cumsum(batch.extend_lens)
    begins = ends - batch.extend_lens
    scored = zip(begins[batch.prompt_logprobs], batch.prompt_targets, strict=True)
    before = [np.arange(begin, begin + len(targets)) for begin, targets in scored]
    return np.concatenate([ends[batch.sampled] - 1, *before])


def entered_pages(batch: ForwardBatch, page_size: int) -> Pages:
    """Pages in which this step writes the first token but not the last."""
    ends = batch.prefix_lens + batch.extend_lens
    last = ends // page_size
    entered = (ends % page_size != 0) & (last * page_size >= batch.prefix_lens)
    rows = np.flatnonzero(entered)
    pages: Pages = batch.page_table[rows, last[rows]]
    return pages

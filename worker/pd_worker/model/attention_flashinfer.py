"""Paged attention by FlashInfer's kernels, on CUDA in float16 and bfloat16.

The pool is passed as it lies: FlashInfer takes "HND" pages with any stride between them. Its
prefill kernel serves both modes, since one new token is a prefill of one.
"""

from __future__ import annotations

import importlib.util
from functools import cached_property
from typing import Any

import numpy as np
import torch

from pd_worker.core.batch import ForwardBatch, Ints
from pd_worker.memory.kv_pool import KVPool

_WORKSPACE_NBYTES = 128 << 20
_DTYPES = (torch.float16, torch.bfloat16)


def flashinfer_problem(pool: KVPool) -> str:
    """Why FlashInfer cannot serve this pool; empty if it can."""
    if importlib.util.find_spec("flashinfer") is None:
        return "the package flashinfer-python is not installed"
    if pool.tensor.device.type != "cuda":
        return "it needs a CUDA device"
    return "" if pool.tensor.dtype in _DTYPES else "it needs --dtype bfloat16 or float16"


class FlashInferAttention:
    """AttentionBackend over `pool`."""

    def __init__(self, pool: KVPool) -> None:
        self._pool = pool
        self._workspace = torch.empty(
            _WORKSPACE_NBYTES, dtype=torch.uint8, device=pool.tensor.device
        )

    def plan(self, batch: ForwardBatch) -> FlashInferStep:
        """See AttentionBackend."""
        return FlashInferStep(batch, self._pool, self._wrapper)

    @cached_property
    def _wrapper(self) -> Any:
        import flashinfer

        return flashinfer.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "HND")


class FlashInferStep:
    """StepAttention; the kernel's plan is made anew where a layer's settings differ from the
    layer's before."""

    def __init__(self, batch: ForwardBatch, pool: KVPool, wrapper: Any) -> None:
        self._pool, self._wrapper = pool, wrapper
        page_size = pool.layout.page_size
        ends = batch.prefix_lens + batch.extend_lens
        counts = -(-ends // page_size)
        used = np.arange(batch.page_table.shape[1]) < counts[:, None]
        pages, offsets = np.divmod(batch.out_slots, page_size)
        self._pages, self._offsets = self._index(pages), self._index(offsets)
        self._indptrs = (
            self._int32(np.concatenate([[0], np.cumsum(batch.extend_lens)])),
            self._int32(np.concatenate([[0], np.cumsum(counts)])),
            self._int32(batch.page_table[used]),
            self._int32((ends - 1) % page_size + 1),
        )
        self._planned: tuple[float, int | None, float | None] | None = None

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """See StepAttention."""
        keys, values = self._pool.k(layer), self._pool.v(layer)
        keys[self._pages, :, self._offsets] = key
        values[self._pages, :, self._offsets] = value
        if self._planned != (scale, window, softcap):
            self._plan(query.shape[1], scale, window, softcap)
        output: torch.Tensor = self._wrapper.run(query.contiguous(), (keys, values))
        return output

    def _plan(self, heads: int, scale: float, window: int | None, softcap: float | None) -> None:
        layout, dtype = self._pool.layout, self._pool.tensor.dtype
        self._wrapper.plan(
            *self._indptrs,
            heads,
            layout.num_kv_heads,
            layout.head_dim,
            layout.page_size,
            causal=True,
            sm_scale=scale,
            window_left=-1 if window is None else window - 1,
            logits_soft_cap=softcap,
            q_data_type=dtype,
            kv_data_type=dtype,
        )
        self._planned = (scale, window, softcap)

    def _index(self, array: Ints) -> torch.Tensor:
        return torch.from_numpy(array).to(self._pool.tensor.device)

    def _int32(self, array: Any) -> torch.Tensor:
        return self._index(array.astype(np.int32))

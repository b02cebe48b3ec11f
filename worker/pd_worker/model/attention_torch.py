"""The reference backend: paged attention in plain torch, on any device.

DECODE is one grouped matmul over all requests, padded to the longest. torch's fused attention is
many times slower there with its one query row in bfloat16, and equal or better with many rows, so
EXTEND uses it, a request at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from pd_worker.core.batch import ForwardBatch, ForwardMode
from pd_worker.memory.kv_pool import KVPool
from pd_worker.memory.pages import Pages
from pd_worker.model.pool_rows import K, PoolRows, V


class TorchAttention:
    """AttentionBackend over `pool`."""

    def __init__(self, pool: KVPool) -> None:
        self._rows = PoolRows(pool)
        self._page_size, self._device = pool.layout.page_size, pool.tensor.device

    def plan(self, batch: ForwardBatch) -> DecodeStep | ExtendStep:
        """See AttentionBackend."""
        step = DecodeStep if batch.mode is ForwardMode.DECODE else ExtendStep
        return step(batch, self._rows, self._page_size, self._device)


@dataclass(frozen=True, slots=True)
class _Padded:
    """What all requests of a DECODE step read, for one window."""

    rows: torch.Tensor
    """[B, kv_heads, P] block rows."""
    bias: torch.Tensor
    """[B, 1, 1, 1, P * page_size]; 0 where the token is seen, else -inf."""
    keys: torch.Tensor
    values: torch.Tensor


class DecodeStep:
    """StepAttention of a DECODE batch."""

    def __init__(
        self, batch: ForwardBatch, rows: PoolRows, page_size: int, device: torch.device
    ) -> None:
        self._rows, self._page_size, self._device = rows, page_size, device
        self._table, self._ends = batch.page_table, batch.prefix_lens + 1
        self._new = rows.token_rows(batch.out_slots)
        self._reads: dict[int | None, _Padded] = {}

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
        self._rows.write(layer, self._new, key, value)
        if window not in self._reads:
            self._reads[window] = self._read(window)
        read = self._reads[window]
        keys = self._rows.read(layer, K, read.rows, read.keys)
        values = self._rows.read(layer, V, read.rows, read.values)
        out = grouped_attention(query[:, :, None], keys, values, read.bias, scale, softcap)
        return out[:, :, 0]

    def _read(self, window: int | None) -> _Padded:
        ends, page_size = self._ends[:, None], self._page_size
        begins = np.zeros_like(ends) if window is None else np.maximum(ends - window, 0)
        first, last = begins // page_size, -(-ends // page_size)
        columns = first + np.arange((last - first).max())
        inside = np.minimum(columns, self._table.shape[1] - 1)
        pages = np.where(columns < last, np.take_along_axis(self._table, inside, 1), 0)
        positions = first * page_size + np.arange(pages.shape[1] * page_size)
        seen = (positions >= begins) & (positions < ends)
        rows = self._rows.block_rows(pages)
        return _Padded(
            rows=rows,
            bias=_bias(seen, self._device)[:, None, None, None],
            keys=self._rows.buffer(rows),
            values=self._rows.buffer(rows),
        )


@dataclass(frozen=True, slots=True)
class _Stretch:
    """One request's new tokens [begin, end) of an EXTEND step's T, after `prefix` others."""

    begin: int
    end: int
    prefix: int
    pages: Pages


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What one stretch reads, for one window."""

    rows: torch.Tensor | None
    """[kv_heads, P] block rows; None where the new tokens are all there is."""
    num_keys: int
    bias: torch.Tensor | None
    """[new tokens, num_keys]; None is plain causal attention over the new tokens."""


class ExtendStep:
    """StepAttention of an EXTEND batch."""

    def __init__(
        self, batch: ForwardBatch, rows: PoolRows, page_size: int, device: torch.device
    ) -> None:
        self._rows, self._page_size, self._device = rows, page_size, device
        self._new = rows.token_rows(batch.out_slots)
        ends = np.cumsum(batch.extend_lens)
        begins, prefixes = ends - batch.extend_lens, batch.prefix_lens
        spans = zip(begins.tolist(), ends.tolist(), prefixes.tolist(), strict=True)
        self._stretches = [
            _Stretch(*span, pages) for span, pages in zip(spans, batch.page_table, strict=True)
        ]
        self._reads: dict[tuple[int, int | None], _Gathered] = {}

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
        self._rows.write(layer, self._new, key, value)
        out = torch.empty_like(query)
        for stretch in self._stretches:
            own = slice(stretch.begin, stretch.end)
            read = self._read(stretch, window, softcap)
            if read.rows is None:
                keys, values = key[own].transpose(0, 1), value[own].transpose(0, 1)
            else:
                keys, values = self._gather(layer, K, read), self._gather(layer, V, read)
            heads = query[own].transpose(0, 1)
            out[own] = _attention(heads, keys, values, read.bias, scale, softcap).transpose(0, 1)
        return out

    def _gather(self, layer: int, kv: int, read: _Gathered) -> torch.Tensor:
        assert read.rows is not None
        stored = self._rows.read(layer, kv, read.rows, self._rows.buffer(read.rows))
        return stored[:, : read.num_keys]

    def _read(self, stretch: _Stretch, window: int | None, softcap: float | None) -> _Gathered:
        key = stretch.begin, window
        if key not in self._reads:
            self._reads[key] = self._plan(stretch, window, plain=softcap is None)
        return self._reads[key]

    def _plan(self, stretch: _Stretch, window: int | None, *, plain: bool) -> _Gathered:
        count = stretch.end - stretch.begin
        total = stretch.prefix + count
        seen_back = total if window is None else window
        if stretch.prefix == 0 and count <= seen_back and plain:
            return _Gathered(None, count, None)
        first = max(0, stretch.prefix + 1 - seen_back) // self._page_size if stretch.prefix else 0
        queries = np.arange(stretch.prefix, total)[:, None]
        keys = np.arange(first * self._page_size, total)
        seen = (keys <= queries) & (keys > queries - seen_back)
        pages = stretch.pages[first : -(-total // self._page_size)]
        rows = self._rows.block_rows(pages) if stretch.prefix else None
        return _Gathered(rows, len(keys), _bias(seen, self._device, self._rows.dtype))


def _bias(
    seen: npt.NDArray[np.bool_], device: torch.device, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """0 where `seen`, else -inf."""
    hidden = torch.from_numpy(~seen).to(device)
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))


def _attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor | None,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """[heads, n, head_dim] over [kv_heads, N, head_dim]."""
    if softcap is not None:
        assert bias is not None
        return grouped_attention(query, keys, values, bias, scale, softcap)
    return F.scaled_dot_product_attention(
        query[None],
        keys[None],
        values[None],
        attn_mask=bias,
        is_causal=bias is None,
        scale=scale,
        enable_gqa=True,
    )[0]


def grouped_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    bias: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> torch.Tensor:
    """[…, heads, n, head_dim] over […, kv_heads, N, head_dim], softmax in float32.

    The heads that share a KV head are rows of one matrix. `bias` broadcasts to
    […, kv_heads, heads / kv_heads, n, N].
    """
    *batch, heads, count, width = query.shape
    kv_heads, num_keys = keys.shape[-3:-1]
    rows = (query * scale).reshape(*batch, kv_heads, -1, width)
    scores = (rows @ keys.transpose(-1, -2)).float()
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(*batch, kv_heads, heads // kv_heads, count, num_keys) + bias
    weights = scores.softmax(-1).to(values.dtype).view(*batch, kv_heads, -1, num_keys)
    return (weights @ values).view(*batch, heads, count, width)

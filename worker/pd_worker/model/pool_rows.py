"""The KV pool as two flat tables of rows, for reading and writing by index on any device.

    block row = ((page * layers + layer) * 2 + kv) * kv_heads + head       page_size * head_dim
    token row = block row * page_size + offset                             head_dim

Row numbers are worked out once a step for layer 0's keys; a layer, and its values, are a constant
further.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pd_worker.core.batch import Ints
from pd_worker.memory.kv_pool import KVPool

K, V = 0, 1


class PoolRows:
    """Rows are copied as 8-byte words where they are whole ones: a copy by index costs by the
    element, not by the byte."""

    def __init__(self, pool: KVPool) -> None:
        self._layout, self._device = pool.layout, pool.tensor.device
        self.dtype = pool.tensor.dtype
        whole = pool.layout.head_dim * pool.tensor.itemsize % 8 == 0
        self._word = torch.int64 if whole else self.dtype
        self._width = pool.layout.page_size * pool.layout.head_dim
        self._tokens = pool.tensor.view(-1, pool.layout.head_dim).view(self._word)
        self._blocks = pool.tensor.view(-1, self._width).view(self._word)

    def block_rows(self, pages: npt.NDArray[np.integer[Any]]) -> torch.Tensor:
        """[..., P] pages to [..., kv_heads, P] block rows."""
        return self._to_device(self._first(pages)[..., None, :] + self._heads()[:, None])

    def token_rows(self, slots: Ints) -> torch.Tensor:
        """[T] token slots to [T, kv_heads] token rows."""
        pages, offsets = np.divmod(slots, self._layout.page_size)
        blocks = self._first(pages)[:, None] + self._heads()
        return self._to_device(blocks * self._layout.page_size + offsets[:, None])

    def write(self, layer: int, rows: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store [T, kv_heads, head_dim] keys and values of one layer at token rows."""
        for kv, new in ((K, key), (V, value)):
            at = rows + self._shift(layer, kv) * self._layout.page_size
            flat = new.to(self.dtype).reshape(-1, self._layout.head_dim).contiguous()
            self._tokens.index_copy_(0, at.view(-1), flat.view(self._word))

    def read(self, layer: int, kv: int, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Copy [..., P] blocks of one layer into `out`, from buffer(); returns it as
        [..., P * page_size, head_dim]."""
        at = (rows + self._shift(layer, kv)).view(-1)
        torch.index_select(self._blocks, 0, at, out=out.view(self._word))
        return out.view(*rows.shape[:-1], -1, self._layout.head_dim)

    def buffer(self, rows: torch.Tensor) -> torch.Tensor:
        """Room for one read of `rows`."""
        return torch.empty(rows.numel(), self._width, dtype=self.dtype, device=self._device)

    def _first(self, pages: npt.NDArray[np.integer[Any]]) -> Ints:
        layout = self._layout
        return pages.astype(np.int64) * (layout.num_layers * 2 * layout.num_kv_heads)

    def _heads(self) -> Ints:
        return np.arange(self._layout.num_kv_heads, dtype=np.int64)

    def _shift(self, layer: int, kv: int) -> int:
        return (layer * 2 + kv) * self._layout.num_kv_heads

    def _to_device(self, rows: Ints) -> torch.Tensor:
        return torch.from_numpy(rows).to(self._device)

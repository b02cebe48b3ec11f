"""The KV pool: one page-major tensor, on a device or over shared memory.

    [num_pages, layers, 2, kv_heads, page_size, head_dim]       2: K, V

One page of all layers is one contiguous block of `page_nbytes`, so a run of pages is one write
for a transfer engine; K and V of a layer are strided views. Slots of a page in use that no token
has reached yet are zero (`clear`), so that what an earlier request left there, perhaps NaN, cannot
reach a masked product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from pd_worker.config import MemoryConfig
from pd_worker.errors import ConfigError
from pd_worker.memory.allocator import RESERVED_PAGES
from pd_worker.memory.pages import Pages, pages_for

_ITEM_NBYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayout:
    """Shape and element type of a KV pool."""

    num_pages: int
    num_layers: int
    num_kv_heads: int
    page_size: int
    head_dim: int
    dtype: str
    """float32, bfloat16 or float16."""

    @property
    def shape(self) -> tuple[int, int, int, int, int, int]:
        """Of the pool tensor."""
        heads, slots = self.num_kv_heads, self.page_size
        return (self.num_pages, self.num_layers, 2, heads, slots, self.head_dim)

    @property
    def page_nbytes(self) -> int:
        """Bytes of one page of all layers."""
        return math.prod(self.shape[1:]) * _ITEM_NBYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return self.num_pages * self.page_nbytes

    def sized(self, memory: MemoryConfig, free_nbytes: int, default_fraction: float) -> KVLayout:
        """This layout with as many pages as `memory` asks for, and the reserved one.

        Raises ConfigError where that leaves no page or does not fit into `free_nbytes`.
        """
        pages = pages_for(memory.max_total_tokens, self.page_size) + RESERVED_PAGES
        if not memory.max_total_tokens:
            share = free_nbytes * (memory.mem_fraction or default_fraction)
            pages = int(share) // self.page_nbytes
        layout = replace(self, num_pages=pages)
        if pages <= RESERVED_PAGES:
            fix = "raise it or give --max-total-tokens"
            raise ConfigError("--mem-fraction", f"{free_nbytes} free bytes give no KV page", fix)
        if layout.nbytes > free_nbytes:
            problem = f"{layout.nbytes} bytes of KV do not fit into {free_nbytes} free bytes"
            raise ConfigError("--max-total-tokens", problem, "lower it")
        return layout


class KVPool:
    """The tensor, its views by layer, and its address for transfer engines."""

    def __init__(
        self,
        layout: KVLayout,
        *,
        device: torch.device | str = "cpu",
        buffer: memoryview | None = None,
    ) -> None:
        """`buffer` (writable, at least layout.nbytes, zeroed) puts a CPU pool over memory that the
        caller shares; it must outlive the pool. Without it the memory is the pool's own."""
        self.layout = layout
        dtype = getattr(torch, layout.dtype)
        if buffer is None:
            self.tensor = torch.zeros(layout.shape, dtype=dtype, device=device)
        else:
            flat = torch.frombuffer(buffer, dtype=torch.uint8, count=layout.nbytes)
            self.tensor = flat.view(dtype).view(layout.shape)

    @property
    def data_ptr(self) -> int:
        """Address of page 0."""
        return self.tensor.data_ptr()

    @property
    def nbytes(self) -> int:
        """Bytes of the pool."""
        return self.layout.nbytes

    @property
    def page_nbytes(self) -> int:
        """Bytes of one page of all layers."""
        return self.layout.page_nbytes

    @property
    def num_pages(self) -> int:
        """Pages, the reserved one included."""
        return self.layout.num_pages

    def k(self, layer: int) -> torch.Tensor:
        """Keys of one layer: a view [num_pages, kv_heads, page_size, head_dim]."""
        return self.tensor[:, layer, 0]

    def v(self, layer: int) -> torch.Tensor:
        """Values of one layer: a view like k()."""
        return self.tensor[:, layer, 1]

    def clear(self, pages: Pages) -> None:
        """Zero whole pages."""
        self._fill(pages, 0.0)

    def poison(self, pages: Pages) -> None:
        """Fill whole pages with NaN, so that reading one shows at once."""
        self._fill(pages, float("nan"))

    def save(self, pages: Pages) -> torch.Tensor:
        """A copy of whole pages on the host."""
        return self._words().index_select(0, self._index(pages)).cpu()

    def load(self, pages: Pages, data: torch.Tensor) -> None:
        """Write what save() returned into as many other pages."""
        self._words().index_copy_(0, self._index(pages), data.to(self.tensor.device))

    def _fill(self, pages: Pages, value: float) -> None:
        self.tensor.index_fill_(0, self._index(pages), value)

    def _words(self) -> torch.Tensor:
        """The pool as [num_pages, words]: pages move several times faster as int64 than as
        bytes."""
        return self.tensor.view(self.num_pages, -1).view(torch.int64)

    def _index(self, pages: Pages) -> torch.Tensor:
        return torch.from_numpy(pages.astype(np.int64)).to(self.tensor.device)

    def __repr__(self) -> str:
        return f"KVPool({self.layout.shape}, {self.layout.dtype}, {self.tensor.device})"

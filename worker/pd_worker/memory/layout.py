"""Shape of the KV pool and how many pages it gets. No torch: peers and fakes need it as well.

    [num_pages, layers, 2, kv_heads, page_size, head_dim]       2: K, V

One page of all layers is one contiguous block of `page_nbytes`, so a run of pages is one write
for a transfer engine; K and V of one layer are strided views.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pd_worker.config import MemoryConfig
from pd_worker.errors import ConfigError
from pd_worker.memory.allocator import RESERVED_PAGES
from pd_worker.memory.pages import pages_for

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

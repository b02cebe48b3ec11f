"""The KV pool: one page-major tensor (see layout.py), on a device or over shared memory.

Slots of a page in use that no token has reached yet are zero (`clear`), so that what an earlier
request left there, perhaps NaN, cannot reach a masked product.
"""

from __future__ import annotations

import numpy as np
import torch

from pd_worker.memory.layout import KVLayout
from pd_worker.memory.pages import Pages


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

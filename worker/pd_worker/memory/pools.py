"""Rows that map a request's token positions to token slots, and their two budgets.

Row 0 is never handed out: it is the row of padding. The rows number the runner's token buffer as
well. Used by the scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from pd_worker.errors import IntegrityError

RESERVED_ROWS = 1


class ReqToTokenPool:
    """`size` requests at a time; `req_to_token[row, position]` is a token slot.

    Entries beyond what the row's request wrote are left over from earlier requests.
    """

    def __init__(self, size: int, max_context: int) -> None:
        self._set_up(size, max_context, RESERVED_ROWS + size)

    def _set_up(self, size: int, max_context: int, num_rows: int) -> None:
        self.size, self.max_context, self.num_rows = size, max_context, num_rows
        self.req_to_token: npt.NDArray[np.int32] = np.zeros((num_rows, max_context), np.int32)
        self._free = list(range(num_rows - 1, RESERVED_ROWS - 1, -1))
        self._running: set[int] = set()

    @property
    def available(self) -> int:
        """Requests that can still start."""
        return self.size - len(self._running)

    def alloc(self) -> int | None:
        """A row for a request that starts now; None if `size` are running."""
        if self.available == 0:
            return None
        row = self._free.pop()
        self._running.add(row)
        return row

    def free(self, row: int) -> None:
        """Take a row back; raises IntegrityError if it is not in use."""
        if row not in self._running:
            raise IntegrityError(f"freed row {row}, which is not in use")
        self._running.remove(row)
        self._free.append(row)

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raise IntegrityError unless exactly the rows `held` are in use, each once."""
        if sorted(held) != sorted(self._in_use()):
            raise IntegrityError(f"rows {sorted(held)} are held, {sorted(self._in_use())} in use")

    def _in_use(self) -> set[int]:
        return self._running

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._running)}/{self.size} running)"


class DecodeReqToTokenPool(ReqToTokenPool):
    """As above, and `pre_alloc_size` rows more for requests whose KV is on its way.

        size + pre_alloc_size + 1 rows = running | pre-allocated | padding

    The two have budgets of their own, so that waiting transfers never take what a running or
    retracted request needs.
    """

    def __init__(self, size: int, pre_alloc_size: int, max_context: int) -> None:
        self.pre_alloc_size = pre_alloc_size
        self._pre_allocated: set[int] = set()
        self._set_up(size, max_context, RESERVED_ROWS + size + pre_alloc_size)

    @property
    def pre_alloc_available(self) -> int:
        """Requests that can still be pre-allocated."""
        return self.pre_alloc_size - len(self._pre_allocated)

    def pre_alloc(self) -> int | None:
        """A row for a request whose KV is to come; None if pre_alloc_size wait already."""
        if self.pre_alloc_available == 0:
            return None
        row = self._free.pop()
        self._pre_allocated.add(row)
        return row

    def start(self, row: int) -> bool:
        """Count a pre-allocated row as running; False, and nothing changed, if `size` run."""
        if row not in self._pre_allocated:
            raise IntegrityError(f"started row {row}, which is not pre-allocated")
        if self.available == 0:
            return False
        self._pre_allocated.remove(row)
        self._running.add(row)
        return True

    def free(self, row: int) -> None:
        """Take a row back, running or pre-allocated."""
        if row in self._pre_allocated:
            self._pre_allocated.remove(row)
            self._free.append(row)
            return
        super().free(row)

    def _in_use(self) -> set[int]:
        return self._running | self._pre_allocated

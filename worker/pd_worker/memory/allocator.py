"""Who owns which page of the KV pool.

Page 0 is never handed out: it is the padding of page tables and the target of writes that nobody
reads. Pages are kept as runs, so that a request gets consecutive pages where there are any and
its KV moves to a peer as one block. Used by the scheduler thread only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

import numpy as np

from pd_worker.errors import IntegrityError
from pd_worker.memory.pages import Pages, empty_pages, page_runs

RESERVED_PAGES = 1


class FreeRuns:
    """The free pages as maximal runs [start, end), found by border and by length."""

    def __init__(self) -> None:
        self._end: dict[int, int] = {}
        self._start: dict[int, int] = {}
        self._by_length: list[tuple[int, int]] = []

    def add(self, start: int, end: int) -> None:
        """Take in a run; it is merged with the runs it touches."""
        before, after = self._start.get(start), self._end.get(end)
        if before is not None:
            self._drop(before, start)
            start = before
        if after is not None:
            self._drop(end, after)
            end = after
        self._end[start], self._start[end] = end, start
        insort(self._by_length, (end - start, start))

    def take(self, wanted: int) -> tuple[int, int]:
        """Cut a run of at most `wanted` pages: from the shortest that is long enough, else the
        longest there is, whole."""
        found = min(bisect_left(self._by_length, (wanted, 0)), len(self._by_length) - 1)
        length, start = self._by_length[found]
        self._drop(start, start + length)
        if length > wanted:
            self.add(start + wanted, start + length)
        return start, start + min(length, wanted)

    def _drop(self, start: int, end: int) -> None:
        del self._end[start], self._start[end]
        del self._by_length[bisect_left(self._by_length, (end - start, start))]


class PageAllocator:
    """Hands out pages 1 … num_pages-1."""

    def __init__(
        self, num_pages: int, page_size: int, *, on_free: Callable[[Pages], None] | None = None
    ) -> None:
        """`on_free` is called with pages that have just become free (poisoning)."""
        self.num_pages, self.page_size = num_pages, page_size
        self._on_free = on_free
        self._used = np.zeros(num_pages, np.bool_)
        self._used[:RESERVED_PAGES] = True
        self._runs = FreeRuns()
        self._available = max(0, num_pages - RESERVED_PAGES)
        if self._available:
            self._runs.add(RESERVED_PAGES, num_pages)

    @property
    def available(self) -> int:
        """Free pages."""
        return self._available

    @property
    def capacity(self) -> int:
        """Pages that exist for requests."""
        return max(0, self.num_pages - RESERVED_PAGES)

    def alloc(self, count: int) -> Pages | None:
        """`count` pages in few long runs, now the caller's; None, and nothing taken, if there are
        fewer."""
        if count > self._available:
            return None
        taken: list[Pages] = [empty_pages()]
        left = count
        while left:
            start, end = self._runs.take(left)
            taken.append(np.arange(start, end, dtype=np.int32))
            left -= end - start
        pages = np.concatenate(taken)
        self._used[pages] = True
        self._available -= count
        return pages

    def free(self, pages: Pages) -> None:
        """Take pages back; raises IntegrityError, and changes nothing, for a page that is not
        allocated or is named twice."""
        if len(pages) == 0:
            return
        ordered = np.sort(pages)
        self._check_owned(ordered)
        self._used[ordered] = False
        self._available += len(ordered)
        for start, length in zip(*(run.tolist() for run in page_runs(ordered)), strict=True):
            self._runs.add(start, start + length)
        if self._on_free is not None:
            self._on_free(ordered)

    def check_integrity(self, held: Iterable[Pages]) -> None:
        """Raise IntegrityError unless `held`, one array for each owner, is exactly what is
        allocated, every page once."""
        owned = np.concatenate([empty_pages(), *held])
        count = np.bincount(owned, minlength=self.num_pages)
        self._complain("owned twice", np.flatnonzero(count > 1))
        self._complain("owned but free", np.flatnonzero((count > 0) & ~self._used))
        used = self._used.copy()
        used[:RESERVED_PAGES] = False
        self._complain("lost", np.flatnonzero(used & (count == 0)))
        self._complain("reserved but owned", np.flatnonzero(count[:RESERVED_PAGES]))

    def _check_owned(self, ordered: Pages) -> None:
        if ordered[0] < RESERVED_PAGES or ordered[-1] >= self.num_pages:
            raise IntegrityError(f"freed a page outside the pool: {ordered[0]} … {ordered[-1]}")
        self._complain("freed twice in one call", ordered[1:][np.diff(ordered) == 0])
        self._complain("freed while free", ordered[~self._used[ordered]])

    def _complain(self, what: str, pages: np.ndarray[tuple[int], np.dtype[np.integer]]) -> None:
        if len(pages):
            raise IntegrityError(f"{len(pages)} pages {what}: {pages[:8].tolist()}")

    def __repr__(self) -> str:
        return f"PageAllocator({self._available}/{self.capacity} pages free)"

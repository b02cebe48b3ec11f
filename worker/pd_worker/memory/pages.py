"""Arithmetic of pages: a page is `page_size` consecutive token slots of the KV pool.

    slot = page * page_size + offset        offset = position % page_size

Pure functions over numpy arrays; called by allocator, caches, scheduler and the PD queues.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Pages = npt.NDArray[np.int32]
Slots = npt.NDArray[np.int64]


def empty_pages() -> Pages:
    """An array of no pages."""
    return np.empty(0, np.int32)


def pages_for(num_tokens: int, page_size: int) -> int:
    """How many pages hold so many tokens."""
    return -(-num_tokens // page_size)


def kv_to_page_indices(kv_indices: npt.NDArray[np.integer[Any]], page_size: int) -> Pages:
    """Pages of the token slots `kv_indices`, in order.

    Right only where the slice begins on a page border and its slots follow each other inside each
    page, which callers guarantee: every page_size-th slot then stands for its page.
    """
    return (kv_indices[::page_size] // page_size).astype(np.int32)


def page_slots(pages: Pages, page_size: int, start: int, end: int) -> Slots:
    """Token slots of positions [start, end) of a sequence whose pages are `pages`."""
    positions = np.arange(start, end, dtype=np.int64)
    return pages[positions // page_size].astype(np.int64) * page_size + positions % page_size


def page_runs(pages: npt.NDArray[np.integer[Any]]) -> tuple[Slots, Slots]:
    """(first page, length) of each run of consecutive numbers in `pages`, in order."""
    if len(pages) == 0:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    wide = pages.astype(np.int64)
    starts = np.flatnonzero(np.diff(wide, prepend=wide[0] - 2) != 1)
    return wide[starts], np.diff(starts, append=len(wide))

"""The one owner of every page and row that requests hold.

A request holds a row of the ReqToTokenPool and pages. Of these some belong to the prefix cache
(the request keeps them alive by a lock on a node), the rest are `req.private_pages`. Here they are
taken, and here alone they are given back. Scheduler thread only.

    pages of a request:  | matched, cache's | private … | private, partly filled |
    after remember():    | matched          | adopted   | private                |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from pd_worker.core.batch import Ints
from pd_worker.core.req import Req
from pd_worker.memory.allocator import PageAllocator
from pd_worker.memory.pages import Pages, empty_pages, kv_to_page_indices, page_slots, pages_for
from pd_worker.memory.pools import ReqToTokenPool
from pd_worker.memory.prefix_cache import BasePrefixCache


class PageStore(Protocol):
    """Where the bytes of pages are (the KV pool)."""

    def save(self, pages: Pages) -> Any:
        """A host copy of the pages."""

    def load(self, pages: Pages, data: Any) -> None:
        """Put a copy back, into other pages of the same number."""


class RequestMemory:
    """Rows, pages and prefix cache of one scheduler."""

    def __init__(
        self,
        rows: ReqToTokenPool,
        allocator: PageAllocator,
        cache: BasePrefixCache,
        store: PageStore,
    ) -> None:
        self.rows, self.allocator, self.cache = rows, allocator, cache
        self._store, self._page_size = store, allocator.page_size

    def __repr__(self) -> str:
        return f"RequestMemory({self.rows!r}, {self.allocator!r}, {self.cache!r})"

    @property
    def num_free_pages(self) -> int:
        """Pages that are free or that the prefix cache would give up."""
        return self.allocator.available + self.cache.evictable

    @property
    def num_total_tokens(self) -> int:
        """Tokens that fit into the pool."""
        return self.allocator.capacity * self._page_size

    @property
    def num_used_tokens(self) -> int:
        """Tokens in pages that requests hold; what the cache would give up does not count."""
        return self.num_total_tokens - self.num_free_pages * self._page_size

    @property
    def num_cached_tokens(self) -> int:
        """Tokens in the prefix cache."""
        return self.cache.total_pages * self._page_size

    def drop_cache(self) -> None:
        """Empty the prefix cache, except for what requests hold."""
        self.cache.reset()

    def num_pages(self, num_tokens: int) -> int:
        """Pages that hold `num_tokens` tokens."""
        return pages_for(num_tokens, self._page_size)

    def admit(
        self,
        req: Req,
        *,
        reserve: int = 0,
        reuse: bool = True,
        take_row: Callable[[], int | None] | None = None,
    ) -> bool:
        """Give `req` a row and room for its prompt, or change nothing and return False.

        `reserve` pages must stay free besides. With `reuse` the longest cached prefix is taken
        over and counted as computed; at least one prompt token is always left to compute.
        `take_row` gets the row where that is not the pool's `alloc`.
        """
        node, pages = None, empty_pages()
        if reuse:
            prefix = self.cache.match(req.input_ids[: req.num_prompt - 1], req.message.extra_key)
            node, pages = prefix.node, prefix.pages
            self.cache.lock(node)
        own = self._take(self.num_pages(req.num_prompt) - len(pages), reserve)
        row = (take_row or self.rows.alloc)() if own is not None else None
        if own is None or row is None:
            if own is not None:
                self.allocator.free(own)
            if node is not None:
                self.cache.unlock(node)
            return False
        req.row, req.node, req.private_pages = row, node, own
        req.num_computed = req.cached_tokens = len(pages) * self._page_size
        req.num_allocated = 0
        self._append(req, np.concatenate([pages, own]))
        return True

    def grow(self, req: Req) -> bool:
        """Make room for one token more; False where no page is left."""
        if req.num_computed < req.num_allocated:
            return True
        own = self._take(1, 0)
        if own is None:
            return False
        req.private_pages = np.concatenate([req.private_pages, own])
        self._append(req, own)
        return True

    def remember(self, req: Req, ids: Sequence[int]) -> None:
        """Offer the full pages of `ids` (a prefix of the request's tokens) to the prefix cache.

        The cache adopts those it did not have; the request goes on using its own pages.
        """
        count = len(ids) // self._page_size
        if count == 0:
            return
        pages = self.pages(req, 0, count * self._page_size)
        kept = self.cache.insert(ids, pages, req.message.extra_key)
        node = self.cache.match(ids[: count * self._page_size], req.message.extra_key).node
        self.cache.lock(node)
        if req.node is not None:
            self.cache.unlock(req.node)
        req.node = node
        req.private_pages = np.setdiff1d(req.private_pages, np.setdiff1d(pages, kept))

    def release(self, req: Req) -> None:
        """Give back all that `req` holds; does nothing where it holds nothing."""
        if req.private_pages.size:
            self.allocator.free(req.private_pages)
        if req.node is not None:
            self.cache.unlock(req.node)
        if req.row >= 0:
            self.rows.free(req.row)
        req.row, req.node, req.private_pages, req.num_allocated = -1, None, empty_pages(), 0
        req.backup = None

    def retract(self, req: Req) -> None:
        """Move the KV of `req` to the host and give back its memory; `resume` undoes it."""
        backup = self._store.save(self.pages(req, 0, req.num_computed))
        self.release(req)
        req.backup = backup

    def resume(self, req: Req, *, reserve: int = 0) -> bool:
        """Bring a retracted request back into memory; False where it does not fit now."""
        own = self._take(self.num_pages(req.num_computed + 1), reserve)
        if own is None:
            return False
        row = self.rows.alloc()
        if row is None:
            self.allocator.free(own)
            return False
        req.row, req.private_pages = row, own
        self._append(req, own)
        self._store.load(own[: self.num_pages(req.num_computed)], req.backup)
        req.backup = None
        return True

    def slots(self, req: Req, start: int, end: int) -> Ints:
        """KV slots of the request's tokens start … end − 1, as kv_indices."""
        return self.rows.req_to_token[req.row, start:end].astype(np.int64)

    def pages(self, req: Req, start: int, end: int) -> Pages:
        """Pages of tokens start … end − 1; `start` lies on a page border."""
        return kv_to_page_indices(self.rows.req_to_token[req.row, start:end], self._page_size)

    def page_table(self, reqs: Sequence[Req]) -> Pages:
        """[B, P] pages of each request's computed tokens, 0-padded."""
        counts = [self.num_pages(req.num_computed) for req in reqs]
        table = np.zeros((len(reqs), max(counts, default=0)), np.int32)
        for line, count, req in zip(table, counts, reqs, strict=True):
            line[:count] = self.pages(req, 0, req.num_computed)
        return table

    def check_integrity(self, holders: Iterable[Req]) -> None:
        """Raise IntegrityError unless pages and rows are exactly the holders', cache's and free."""
        held = list(holders)
        self.cache.check_integrity()
        self.rows.check_integrity({req.row for req in held if req.row >= 0})
        self.allocator.check_integrity([self.cache.pages(), *(req.private_pages for req in held)])

    def _take(self, count: int, reserve: int) -> Pages | None:
        if count + reserve > self.num_free_pages:
            return None
        if count > self.allocator.available:
            self.cache.evict(count - self.allocator.available)
        return self.allocator.alloc(count)

    def _append(self, req: Req, pages: Pages) -> None:
        count = len(pages) * self._page_size
        slots = page_slots(pages, self._page_size, 0, count)
        self.rows.req_to_token[req.row, req.num_allocated : req.num_allocated + count] = slots
        req.num_allocated += count

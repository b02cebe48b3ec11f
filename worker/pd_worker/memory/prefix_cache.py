"""The KV of finished prompts, found again by equal token prefixes (a radix tree of whole pages).

    root ── [p0 p1 p2] ─┬─ [p3]           an edge is a run of whole pages: their token ids and
                        └─ [p7 p8]        their page numbers

Ownership: a page belongs either to one request or to this tree, never to both. A request that
uses pages of the tree holds a lock on the node they end at, which keeps them from eviction; it
does not own them and must not free them. Used by the scheduler thread only.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pd_worker.errors import IntegrityError
from pd_worker.memory.allocator import PageAllocator
from pd_worker.memory.pages import Pages, empty_pages

TokenIds = Sequence[int] | npt.NDArray[np.integer]
_Tokens = npt.NDArray[np.int32]
_Key = tuple[str, bytes]


class Node:
    """One edge of the tree with the node at its end; opaque to callers."""

    __slots__ = ("children", "key", "locks", "pages", "parent", "queued", "tokens", "used_at")

    def __init__(self, parent: Node | None, key: _Key, tokens: _Tokens, pages: Pages) -> None:
        self.parent, self.key = parent, key
        self.tokens, self.pages = tokens, pages
        self.children: dict[_Key, Node] = {}
        self.locks = 0
        """Locks on this node and on all below it."""
        self.used_at = 0
        self.queued = False
        """An entry in the eviction heap exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The longest cached prefix: its pages, owned by the tree, and the node to lock."""

    pages: Pages
    node: Node


class BasePrefixCache(Protocol):
    """What the scheduler calls; see PrefixCache for each method."""

    @property
    def evictable(self) -> int: ...
    @property
    def total_pages(self) -> int: ...
    def match(self, ids: TokenIds, extra_key: str = "") -> Match: ...
    def lock(self, node: Node) -> None: ...
    def unlock(self, node: Node) -> None: ...
    def insert(self, ids: TokenIds, pages: Pages, extra_key: str = "") -> Pages: ...
    def evict(self, num_pages: int) -> int: ...
    def reset(self) -> int: ...
    def pages(self) -> Pages: ...
    def check_integrity(self) -> None: ...


def _root() -> Node:
    return Node(None, ("", b""), np.empty(0, np.int32), empty_pages())


class PrefixCache:
    """The radix tree. What it drops goes back to `allocator`."""

    def __init__(self, allocator: PageAllocator) -> None:
        self._allocator, self._page_size = allocator, allocator.page_size
        self._root = _root()
        self._heap: list[tuple[int, int, Node]] = []
        self._clock = 0
        self._total = self._locked = 0

    @property
    def total_pages(self) -> int:
        """Pages that the tree owns."""
        return self._total

    @property
    def evictable(self) -> int:
        """Pages that no lock holds: what evict() can free."""
        return self._total - self._locked

    def match(self, ids: TokenIds, extra_key: str = "") -> Match:
        """Longest cached prefix of `ids` in whole pages, for requests of the same `extra_key`.

        The pages are valid until the next evict() or reset() unless the node is locked. Give
        all but the last token of a prompt: that one has to be computed for its logits.
        """
        node, pages = self._descend(np.asarray(ids, np.int32), extra_key)
        return Match(pages=pages, node=node)

    def lock(self, node: Node) -> None:
        """Keep the pages from the root to `node` until unlock(node)."""
        for each in self._path(node):
            if each.locks == 0:
                self._locked += len(each.pages)
            each.locks += 1

    def unlock(self, node: Node) -> None:
        """Undo one lock(node); raises IntegrityError if there is none."""
        for each in self._path(node):
            if each.locks == 0:
                raise IntegrityError("unlocked a prefix that is not locked")
            each.locks -= 1
            if each.locks == 0:
                self._locked -= len(each.pages)
                self._queue(each)

    def insert(self, ids: TokenIds, pages: Pages, extra_key: str = "") -> Pages:
        """Give the tree the KV of the first len(pages) * page_size tokens of `ids`.

        The tree adopts the pages of tokens that it does not know yet. Returned are those of
        `pages` that it did not adopt, because it has other pages for the same tokens: they stay
        the caller's, to free. Pages that came from match() are neither adopted nor returned.
        """
        tokens = np.asarray(ids[: len(pages) * self._page_size], np.int32)
        if len(tokens) < len(pages) * self._page_size:
            raise IntegrityError(f"{len(pages)} pages inserted for {len(tokens)} tokens")
        node, known = self._descend(tokens, extra_key)
        kept: Pages = pages[: len(known)][pages[: len(known)] != known]
        if len(known) < len(pages):
            rest = tokens[len(known) * self._page_size :]
            self._grow(node, rest, pages[len(known) :].copy(), extra_key)
        return kept

    def evict(self, num_pages: int) -> int:
        """Free at least `num_pages` pages, least recently used first, or all that can be;
        returns how many were freed."""
        dropped = [empty_pages()]
        left = num_pages
        while left > 0 and (leaf := self._pop_leaf()) is not None:
            dropped.append(self._shrink(leaf, left))
            left -= len(dropped[-1])
        self._allocator.free(np.concatenate(dropped))
        return num_pages - left

    def reset(self) -> int:
        """Free everything that is not locked; returns how many pages that were."""
        return self.evict(self.evictable)

    def pages(self) -> Pages:
        """All pages that the tree owns (for PageAllocator.check_integrity)."""
        return np.concatenate([empty_pages(), *(node.pages for node in self._nodes())])

    def check_integrity(self) -> None:
        """Raise IntegrityError if counts, locks or links of the tree contradict each other."""
        nodes = list(self._nodes())
        total = sum(len(node.pages) for node in nodes)
        locked = sum(len(node.pages) for node in nodes if node.locks)
        if (total, locked) != (self._total, self._locked):
            raise IntegrityError(f"prefix cache counts {self._total}, {self._locked} of {nodes}")
        for node in nodes:
            below = sum(child.locks for child in node.children.values())
            full = len(node.tokens) == len(node.pages) * self._page_size > 0
            evictable = node.locks > 0 or bool(node.children) or node.queued
            if not (full and below <= node.locks and evictable):
                raise IntegrityError(f"prefix cache node broken: {len(node.pages)} pages")

    def _descend(self, tokens: _Tokens, extra_key: str) -> tuple[Node, Pages]:
        """The node where the longest known prefix of `tokens` ends (made by a split if there is
        none), marked as used now, and the pages up to there."""
        self._clock += 1
        node, pages, start = self._root, [empty_pages()], 0
        while len(rest := tokens[start:]) >= self._page_size:
            child = node.children.get(self._key(rest, extra_key))
            if child is None:
                break
            same = self._same_pages(child, rest)
            node = self._split(child, same) if same < len(child.pages) else child
            node.used_at = self._clock
            pages.append(node.pages)
            start += same * self._page_size
        return node, np.concatenate(pages)

    def _same_pages(self, node: Node, tokens: _Tokens) -> int:
        length = min(len(node.tokens), len(tokens))
        different = np.flatnonzero(node.tokens[:length] != tokens[:length])
        return (int(different[0]) if len(different) else length) // self._page_size

    def _key(self, tokens: _Tokens, extra_key: str) -> _Key:
        return extra_key, tokens[: self._page_size].tobytes()

    def _split(self, node: Node, num_pages: int) -> Node:
        """Cut `node` after so many pages; returns the new upper part. `node` stays the lower
        part, so that locks held on it keep their meaning."""
        cut = num_pages * self._page_size
        upper = Node(node.parent, node.key, node.tokens[:cut], node.pages[:num_pages])
        upper.locks, upper.used_at = node.locks, node.used_at
        assert node.parent is not None
        node.parent.children[node.key] = upper
        node.tokens, node.pages = node.tokens[cut:], node.pages[num_pages:]
        node.parent, node.key = upper, self._key(node.tokens, node.key[0])
        upper.children[node.key] = node
        return upper

    def _grow(self, parent: Node, tokens: _Tokens, pages: Pages, extra_key: str) -> None:
        leaf = Node(parent, self._key(tokens, extra_key), tokens, pages)
        leaf.used_at = self._clock
        parent.children[leaf.key] = leaf
        self._total += len(pages)
        self._queue(leaf)

    def _queue(self, node: Node) -> None:
        """Make an unlocked leaf known to eviction. Entries may be stale: see _pop_leaf."""
        if not (node.queued or node.locks or node.children or node is self._root):
            node.queued = True
            heapq.heappush(self._heap, (node.used_at, id(node), node))

    def _pop_leaf(self) -> Node | None:
        """The unlocked leaf that was used longest ago."""
        while self._heap:
            used_at, _, node = heapq.heappop(self._heap)
            node.queued = False
            if used_at == node.used_at and not (node.locks or node.children):
                return node
            self._queue(node)
        return None

    def _shrink(self, leaf: Node, num_pages: int) -> Pages:
        """Cut up to `num_pages` pages off the end of a leaf; an empty leaf leaves the tree."""
        keep = max(0, len(leaf.pages) - num_pages)
        dropped = leaf.pages[keep:]
        leaf.pages, leaf.tokens = leaf.pages[:keep], leaf.tokens[: keep * self._page_size]
        self._total -= len(dropped)
        if keep:
            self._queue(leaf)
        elif leaf.parent is not None:
            del leaf.parent.children[leaf.key]
            self._queue(leaf.parent)
        return dropped

    def _path(self, node: Node) -> Iterator[Node]:
        """`node` and all above it but the root."""
        while node.parent is not None:
            yield node
            node = node.parent

    def _nodes(self) -> Iterator[Node]:
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def __repr__(self) -> str:
        return f"PrefixCache({self._total} pages, {self.evictable} evictable)"


class NoPrefixCache:
    """A prefix cache that never holds anything: for decode and for --no-prefix-cache."""

    evictable = 0
    total_pages = 0

    def __init__(self) -> None:
        self._node = _root()

    def match(self, ids: TokenIds, extra_key: str = "") -> Match:
        """Nothing is ever cached."""
        return Match(pages=empty_pages(), node=self._node)

    def lock(self, node: Node) -> None:
        """Nothing to hold."""

    def unlock(self, node: Node) -> None:
        """Nothing is held."""

    def insert(self, ids: TokenIds, pages: Pages, extra_key: str = "") -> Pages:
        """Adopts nothing: all of `pages` stay the caller's."""
        return pages

    def evict(self, num_pages: int) -> int:
        """Frees nothing."""
        return 0

    def reset(self) -> int:
        """Frees nothing."""
        return 0

    def pages(self) -> Pages:
        """Owns nothing."""
        return empty_pages()

    def check_integrity(self) -> None:
        """Always whole."""

"""The radix tree against a dictionary of every known prefix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pd_worker.errors import IntegrityError
from pd_worker.memory.allocator import PageAllocator
from pd_worker.memory.prefix_cache import Match, NoPrefixCache, PrefixCache

PAGE = 2


def make(num_pages: int = 64) -> tuple[PageAllocator, PrefixCache]:
    allocator = PageAllocator(num_pages, PAGE)
    return allocator, PrefixCache(allocator)


def put(allocator: PageAllocator, cache: PrefixCache, ids: list[int], key: str = "") -> list[int]:
    """Insert fresh pages for `ids`; frees what the cache did not adopt; returns the pages."""
    pages = allocator.alloc(len(ids) // PAGE)
    allocator.free(cache.insert(ids, pages, key))
    return pages.tolist()


def test_only_whole_pages_match() -> None:
    allocator, cache = make()
    pages = put(allocator, cache, [1, 2, 3, 4, 5])
    assert cache.match([1, 2, 3, 4, 5, 6]).pages.tolist() == pages
    assert cache.match([1, 2, 3]).pages.tolist() == pages[:1]
    assert cache.match([1]).pages.tolist() == []
    assert cache.match([9, 2, 3, 4]).pages.tolist() == []


def test_extra_keys_do_not_share() -> None:
    allocator, cache = make()
    ours = put(allocator, cache, [1, 2, 3, 4], "a")
    theirs = put(allocator, cache, [1, 2, 3, 4], "b")
    assert cache.match([1, 2, 3, 4], "a").pages.tolist() == ours
    assert cache.match([1, 2, 3, 4], "b").pages.tolist() == theirs
    assert cache.match([1, 2, 3, 4]).pages.tolist() == []


def test_pages_of_known_tokens_stay_the_callers() -> None:
    allocator, cache = make()
    known = put(allocator, cache, [1, 2, 3, 4])
    mine = allocator.alloc(3)
    kept = cache.insert([1, 2, 3, 4, 5, 6], mine)
    assert kept.tolist() == mine[:2].tolist()
    assert cache.match([1, 2, 3, 4, 5, 6]).pages.tolist() == [*known, mine[2]]


def test_matched_pages_are_neither_adopted_nor_returned() -> None:
    allocator, cache = make()
    put(allocator, cache, [1, 2, 3, 4])
    found = cache.match([1, 2, 3, 4]).pages
    own = allocator.alloc(1)
    assert len(cache.insert([1, 2, 3, 4, 5, 6], np.concatenate([found, own]))) == 0
    assert cache.total_pages == 3


def test_too_few_tokens_for_the_pages_are_a_bug() -> None:
    allocator, cache = make()
    with pytest.raises(IntegrityError):
        cache.insert([1, 2, 3], allocator.alloc(2))


def test_locked_pages_are_not_evicted() -> None:
    allocator, cache = make()
    pages = put(allocator, cache, [1, 2, 3, 4, 5, 6])
    match = cache.match([1, 2, 3, 4])
    cache.lock(match.node)
    assert cache.evictable == 1
    assert cache.evict(9) == 1
    assert cache.match([1, 2, 3, 4, 5, 6]).pages.tolist() == pages[:2]
    cache.unlock(match.node)
    assert cache.evictable == cache.reset() == 2
    allocator.check_integrity([])


def test_a_lock_keeps_its_meaning_when_its_node_is_split() -> None:
    allocator, cache = make()
    put(allocator, cache, [1, 2, 3, 4, 5, 6])
    match = cache.match([1, 2, 3, 4, 5, 6])
    cache.lock(match.node)
    put(allocator, cache, [1, 2, 7, 8])
    assert cache.evict(9) == 1
    cache.unlock(match.node)
    cache.check_integrity()
    assert cache.reset() == 3


def test_unlocking_twice_is_a_bug() -> None:
    allocator, cache = make()
    put(allocator, cache, [1, 2])
    match = cache.match([1, 2])
    cache.lock(match.node)
    cache.unlock(match.node)
    with pytest.raises(IntegrityError):
        cache.unlock(match.node)


def test_the_least_recently_used_goes_first() -> None:
    allocator, cache = make()
    for first in (1, 2, 3):
        put(allocator, cache, [first, 0, first, 1])
    cache.match([1, 0, 1, 1])
    cache.evict(2)
    assert [len(cache.match([first, 0, first, 1]).pages) for first in (1, 2, 3)] == [2, 0, 2]


def test_eviction_takes_no_more_than_asked() -> None:
    allocator, cache = make()
    pages = put(allocator, cache, [1, 2, 3, 4, 5, 6])
    assert cache.evict(1) == 1
    assert cache.match([1, 2, 3, 4, 5, 6]).pages.tolist() == pages[:2]


def test_no_prefix_cache_holds_nothing() -> None:
    cache, pages = NoPrefixCache(), np.array([3, 4], np.int32)
    assert cache.insert([1, 2, 3, 4], pages).tolist() == [3, 4]
    match = cache.match([1, 2, 3, 4])
    cache.lock(match.node)
    cache.unlock(match.node)
    assert (len(match.pages), cache.evict(4), cache.reset(), cache.evictable) == (0, 0, 0, 0)


IDS = st.lists(st.integers(0, 2), max_size=12)
KEYS = st.sampled_from(["", "k"])


class Model(RuleBasedStateMachine):
    """Random use of the tree beside a dictionary from (key, prefix of whole pages) to the page of
    the prefix's end."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator, self.cache = make(40)
        self.known: dict[tuple[str, tuple[int, ...]], int] = {}
        self.locked: list[tuple[str, list[int], Match]] = []

    def expected(self, key: str, ids: list[int]) -> list[int]:
        found = []
        for end in range(PAGE, len(ids) + 1, PAGE):
            page = self.known.get((key, tuple(ids[:end])))
            if page is None:
                break
            found.append(page)
        return found

    @rule(key=KEYS, ids=IDS)
    def insert(self, key: str, ids: list[int]) -> None:
        count = len(ids) // PAGE
        if count > self.allocator.available:
            return
        pages = self.allocator.alloc(count)
        known = self.expected(key, ids)
        kept = self.cache.insert(ids, pages, key)
        assert kept.tolist() == pages[: len(known)].tolist()
        for i in range(len(known), count):
            self.known[key, tuple(ids[: (i + 1) * PAGE])] = int(pages[i])
        self.allocator.free(kept)

    @rule(key=KEYS, ids=IDS)
    def match(self, key: str, ids: list[int]) -> None:
        assert self.cache.match(ids, key).pages.tolist() == self.expected(key, ids)

    @rule(key=KEYS, ids=IDS)
    def lock(self, key: str, ids: list[int]) -> None:
        match = self.cache.match(ids, key)
        self.cache.lock(match.node)
        self.locked.append((key, ids[: len(match.pages) * PAGE], match))

    @rule(at=st.integers(0, 99))
    def unlock(self, at: int) -> None:
        if self.locked:
            self.cache.unlock(self.locked.pop(at % len(self.locked))[2].node)

    @rule(count=st.integers(0, 9))
    def evict(self, count: int) -> None:
        before = set(self.cache.pages().tolist())
        evictable = self.cache.evictable
        assert self.cache.evict(count) == min(count, evictable)
        gone = before - set(self.cache.pages().tolist())
        self.known = {prefix: page for prefix, page in self.known.items() if page not in gone}

    @invariant()
    def locked_prefixes_are_there(self) -> None:
        for key, ids, match in self.locked:
            assert self.expected(key, ids) == match.pages.tolist()

    @invariant()
    def the_books_are_right(self) -> None:
        self.cache.check_integrity()
        self.allocator.check_integrity([self.cache.pages()])
        assert self.cache.total_pages == len(self.known)


TestAgainstDictionary = Model.TestCase
TestAgainstDictionary.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)

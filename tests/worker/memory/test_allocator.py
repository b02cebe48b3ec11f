"""Pages have one owner, come in runs, and come back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_worker.errors import IntegrityError
from pd_worker.memory.allocator import PageAllocator
from pd_worker.memory.pages import empty_pages, page_runs


def pages(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def test_all_pages_but_the_reserved_one_are_handed_out() -> None:
    allocator = PageAllocator(8, 16)
    assert sorted(allocator.alloc(7)) == [1, 2, 3, 4, 5, 6, 7]
    assert allocator.available == 0


def test_too_many_pages_take_nothing() -> None:
    allocator = PageAllocator(8, 16)
    assert allocator.alloc(8) is None
    assert allocator.available == 7


def test_no_pages_are_no_pages() -> None:
    assert len(PageAllocator(1, 16).alloc(0)) == 0


def test_the_shortest_run_that_is_long_enough_is_cut() -> None:
    allocator = PageAllocator(32, 16)
    allocator.alloc(31)
    allocator.free(pages(2, 3, 4))
    allocator.free(pages(*range(10, 20)))
    allocator.free(pages(25))
    assert allocator.alloc(1).tolist() == [25]
    assert allocator.alloc(3).tolist() == [2, 3, 4]
    assert allocator.alloc(4).tolist() == [10, 11, 12, 13]


def test_fragments_are_used_longest_first() -> None:
    allocator = PageAllocator(32, 16)
    allocator.alloc(31)
    allocator.free(pages(2, 3, 4, 10, 11, 20))
    assert allocator.alloc(5).tolist() == [2, 3, 4, 10, 11]


def test_freed_neighbours_become_one_run() -> None:
    allocator = PageAllocator(8, 16)
    allocator.alloc(7)
    for page in (3, 1, 2, 5, 4, 7, 6):
        allocator.free(pages(page))
    assert allocator.alloc(7).tolist() == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (pages(5), "free"),
        (pages(1, 1), "twice"),
        (pages(0), "outside"),
        (pages(8), "outside"),
        (pages(-1), "outside"),
    ],
    ids=["free", "twice", "reserved", "beyond", "negative"],
)
def test_a_wrong_free_changes_nothing(wrong: np.ndarray, what: str) -> None:
    allocator = PageAllocator(8, 16)
    held = allocator.alloc(3)
    with pytest.raises(IntegrityError, match=what):
        allocator.free(wrong)
    allocator.check_integrity([held])


@pytest.mark.parametrize(
    ("held", "what"),
    [
        ([pages(1, 2)], "lost"),
        ([pages(1, 2, 3), pages(3)], "owned twice"),
        ([pages(1, 2, 3, 4)], "owned but free"),
        ([pages(0, 1, 2, 3)], "reserved"),
    ],
    ids=["lost", "twice", "free", "reserved"],
)
def test_wrong_ownership_is_noticed(held: list[np.ndarray], what: str) -> None:
    allocator = PageAllocator(8, 16)
    allocator.alloc(3)
    with pytest.raises(IntegrityError, match=what):
        allocator.check_integrity(held)


def test_freed_pages_are_told() -> None:
    freed: list[int] = []
    allocator = PageAllocator(8, 16, on_free=freed.extend)
    allocator.free(allocator.alloc(3))
    allocator.free(empty_pages())
    assert freed == [1, 2, 3]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=60))
def test_any_sequence_keeps_the_books(steps: list[tuple[bool, int]]) -> None:
    allocator, held = PageAllocator(40, 1), []
    for taking, number in steps:
        if taking:
            free = allocator.available
            got = allocator.alloc(number)
            assert (got is None) == (number > free)
            held += [] if got is None else [got]
        elif held:
            allocator.free(held.pop(number % len(held)))
        allocator.check_integrity(held)
        assert allocator.available == 39 - sum(map(len, held))


@given(st.lists(st.integers(0, 50)))
def test_runs_lay_out_the_pages_again(numbers: list[int]) -> None:
    starts, lengths = page_runs(np.array(numbers, np.int32))
    again = [
        page
        for start, length in zip(starts, lengths, strict=True)
        for page in range(start, start + length)
    ]
    assert again == numbers
    assert all(starts[i] + lengths[i] != starts[i + 1] for i in range(len(starts) - 1)), (
        "runs that touch are one"
    )

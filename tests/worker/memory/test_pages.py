"""Page arithmetic agrees with doing it one token at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_worker.memory.pages import kv_to_page_indices, page_slots, pages_for

PAGE_SIZES = st.sampled_from([1, 16, 64])


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_a_page_is_taken_for_each_begun_one(tokens: int, pages: int) -> None:
    assert pages_for(tokens, 16) == pages


@given(PAGE_SIZES, st.data())
def test_slots_and_pages_are_inverse(page_size: int, data: st.DataObject) -> None:
    pages = np.array(data.draw(st.lists(st.integers(1, 99), min_size=1, max_size=5)), np.int32)
    end = data.draw(st.integers(1, len(pages) * page_size))
    slots = page_slots(pages, page_size, 0, end)
    assert slots.tolist() == [pages[i // page_size] * page_size + i % page_size for i in range(end)]
    found = kv_to_page_indices(slots, page_size)
    assert found.dtype == np.int32
    assert found.tolist() == pages[: pages_for(end, page_size)].tolist()


@given(PAGE_SIZES, st.integers(0, 40), st.integers(0, 40))
def test_a_part_of_the_slots_is_a_slice(page_size: int, start: int, length: int) -> None:
    pages = np.arange(1, 90, dtype=np.int32)
    end = start + length
    part = page_slots(pages, page_size, start, end)
    assert part.tolist() == page_slots(pages, page_size, 0, end)[start:].tolist()

"""Page indices become the fewest blocks that move the right bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pd_worker.transfer.blocks import Blocks, PageSlice, page_blocks

pages = st.integers(0, 40)
pairs = st.lists(st.tuples(pages, pages), max_size=40, unique_by=(lambda p: p[0], lambda p: p[1]))


def plan(moves: list[tuple[int, int]], part: PageSlice) -> Blocks:
    src, dst = (np.array([move[side] for move in moves], dtype=np.int32) for side in (0, 1))
    return page_blocks(src, dst, src_base=1000, dst_base=100_000, part=part)


def bytes_moved(blocks: Blocks) -> list[tuple[int, int]]:
    return [
        (src + offset, dst + offset)
        for src, dst, length in zip(blocks.src, blocks.dst, blocks.lengths, strict=True)
        for offset in range(length)
    ]


@given(moves=pairs)
def test_whole_pages_move_byte_by_byte(moves: list[tuple[int, int]]) -> None:
    expected = [
        (1000 + src * 8 + offset, 100_000 + dst * 8 + offset)
        for src, dst in moves
        for offset in range(8)
    ]
    assert bytes_moved(plan(moves, PageSlice.whole(8))) == expected


@given(moves=pairs)
def test_no_two_blocks_could_be_one(moves: list[tuple[int, int]]) -> None:
    blocks = plan(moves, PageSlice.whole(8))
    ends = [(s + n, d + n) for s, d, n in zip(blocks.src, blocks.dst, blocks.lengths, strict=True)]
    starts = list(zip(blocks.src, blocks.dst, strict=True))
    assert all(end != start for end, start in zip(ends, starts[1:], strict=False))


@given(moves=pairs)
def test_part_of_a_page_moves_between_pages_of_different_size(
    moves: list[tuple[int, int]],
) -> None:
    part = PageSlice(src_stride=8, dst_stride=20, nbytes=3, src_offset=5, dst_offset=10)
    expected = [
        (1000 + src * 8 + 5 + offset, 100_000 + dst * 20 + 10 + offset)
        for src, dst in moves
        for offset in range(3)
    ]
    assert bytes_moved(plan(moves, part)) == expected


def test_consecutive_pages_are_one_block() -> None:
    blocks = plan([(n, n + 7) for n in range(40)], PageSlice.whole(8))
    assert blocks.lengths.tolist() == [320]

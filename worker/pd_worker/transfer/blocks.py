"""From page indices to the (source, destination, length) triples of a write. Pure numpy.

source pages       7  8  9  3  4          triples: 7→20 three pages long, 3→30 two pages long
destination pages 20 21 22 30 31
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Addresses = npt.NDArray[np.int64]
Pages = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSlice:
    """Which part of every page moves: `nbytes` from `src_offset` to `dst_offset`.

    Strides are the page sizes of both pools. With equal geometry the part is the whole page; a
    layer range (unequal pipeline sizes) is a contiguous part of it.
    """

    src_stride: int
    dst_stride: int
    nbytes: int
    src_offset: int = 0
    dst_offset: int = 0

    @classmethod
    def whole(cls, page_nbytes: int) -> PageSlice:
        """Equal pages on both sides, moved as they are."""
        return cls(src_stride=page_nbytes, dst_stride=page_nbytes, nbytes=page_nbytes)

    @property
    def mergeable(self) -> bool:
        """Whether neighbouring pages are neighbours as bytes too."""
        return self.nbytes == self.src_stride == self.dst_stride


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """`lengths[i]` bytes go from `src[i]` to `dst[i]`."""

    src: Addresses
    dst: Addresses
    lengths: Addresses


def page_blocks(
    src_pages: Pages, dst_pages: Pages, *, src_base: int, dst_base: int, part: PageSlice
) -> Blocks:
    """Blocks that move page `src_pages[i]` to `dst_pages[i]`; both have one length.

    Runs in which both sides advance by one page become one block.
    """
    src = src_pages.astype(np.int64)
    dst = dst_pages.astype(np.int64)
    if part.mergeable:
        breaks = (np.diff(src) != 1) | (np.diff(dst) != 1)
        starts = np.flatnonzero(np.concatenate(([True], breaks))) if src.size else np.arange(0)
        counts = np.diff(np.append(starts, src.size))
    else:
        starts, counts = np.arange(src.size), np.ones(src.size, dtype=np.int64)
    return Blocks(
        src=src_base + src[starts] * part.src_stride + part.src_offset,
        dst=dst_base + dst[starts] * part.dst_stride + part.dst_offset,
        lengths=counts.astype(np.int64) * part.nbytes,
    )


def single(src: int, dst: int, nbytes: int) -> Blocks:
    """One block."""
    one = [np.array([value], dtype=np.int64) for value in (src, dst, nbytes)]
    return Blocks(src=one[0], dst=one[1], lengths=one[2])

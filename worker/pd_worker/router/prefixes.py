"""Which worker saw which beginnings of prompts, in bounded memory.

A prompt is cut into blocks; a block's hash covers all blocks before it, so equal hashes mean equal
beginnings. Hashes are hints: a collision costs a cache hit, never an answer.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK = 64
"""Characters or token ids in a block."""
MAX_DEPTH = 2048
"""Blocks of one prompt that are looked at: 131,072 characters or ids."""
MAX_OWNERS = 8
"""Workers that are remembered for one block."""
MAX_SHARED = 4096
"""Different combinations of workers that are kept once."""


def chain(units: str | Sequence[int]) -> list[int]:
    """The hashes of the prompt's full blocks, each over everything up to its end."""
    hashes: list[int] = []
    last = 0
    for start in range(0, min(len(units), BLOCK * MAX_DEPTH) - BLOCK + 1, BLOCK):
        block = units[start : start + BLOCK]
        last = hash((last, block if isinstance(block, str) else tuple(block)))
        hashes.append(last)
    return hashes


class PrefixTable:
    """At most `max_blocks` blocks; the one that was not used for longest goes first."""

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._owners: OrderedDict[int, tuple[str, ...]] = OrderedDict()
        self._shared: dict[tuple[str, ...], tuple[str, ...]] = {}
        """Equal tuples once: nearly all blocks have one of a few."""

    def __len__(self) -> int:
        return len(self._owners)

    def match(self, blocks: Sequence[int], owners: Sequence[str]) -> dict[str, int]:
        """How many leading blocks each owner saw; owners that saw none are left out."""
        depths: dict[str, int] = {}
        alive = list(owners)
        for depth, block in enumerate(blocks, start=1):
            known = self._owners.get(block, ())
            alive = [owner for owner in alive if owner in known]
            if not alive:
                break
            depths.update(dict.fromkeys(alive, depth))
        return depths

    def add(self, blocks: Sequence[int], owner: str) -> None:
        """`owner` has seen these blocks. The deepest become the oldest, so that a beginning never
        goes before what follows it."""
        for block in reversed(blocks):
            others = (each for each in self._owners.get(block, ()) if each != owner)
            self._owners[block] = self._interned((*others, owner)[-MAX_OWNERS:])
            self._owners.move_to_end(block)
        while len(self._owners) > self._max_blocks:
            self._owners.popitem(last=False)

    def _interned(self, owners: tuple[str, ...]) -> tuple[str, ...]:
        if len(self._shared) > MAX_SHARED:
            self._shared.clear()
        return self._shared.setdefault(owners, owners)

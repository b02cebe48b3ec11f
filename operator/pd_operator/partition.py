"""How far the partitions of both roles may be lowered now. Pure.

Lowering a partition releases old workers: any of them may be gone in the next moment. What is
certain to serve afterwards are the ready workers that are new or not released, as far as each has
a certain partner with an equal pairing key. A step is allowed when in both roles

    certain to serve  >=  replicas - max_unavailable - lost

`lost` are those that stay old and serve nobody whatever one does: broken ones, ones without a node,
ones whose partners are all gone. Where less is there, nothing of it may be taken away. From this
one rule follows that old and new revision always have both roles until the old one retires, in both
roles at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from pd_operator.fleet import Slot, expected, may_pair, serving


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One role in the search."""

    slots: tuple[Slot, ...]
    released: int
    required: int
    """replicas - max_unavailable."""

    def certain(self, partition: int) -> list[Slot]:
        """Who is still there after a step to `partition`."""
        return [slot for slot in self.slots if slot.new or slot.ordinal < partition]

    @property
    def lacks_new(self) -> bool:
        """It has old workers and no new one that is ready."""
        old = any(not slot.new for slot in self.slots)
        return old and not any(slot.new and slot.ready for slot in self.slots)


Pair = tuple[int, int]
"""Partitions of prefill and decode."""


def lowest(prefill: Part, decode: Part, *, growing: bool = False) -> Pair:
    """The lowest partitions that are allowed now; the released ones where none is lower.

    `growing`: workers that are yet to come will allow more.
    """
    search = _Search(prefill, decode)
    start = prefill.released, decode.released
    if search.allows((0, 0)):
        return 0, 0
    found = search.lowered(start)
    return found if growing or found != start else _unlocked(prefill, decode)


class _Search:
    """The rule, applied to one situation."""

    def __init__(self, prefill: Part, decode: Part) -> None:
        self._parts = prefill, decode
        here = prefill.certain(prefill.released), decode.certain(decode.released)
        self._now = expected(here[0], here[1]), expected(here[1], here[0])

    def allows(self, pair: Pair) -> bool:
        """True where a step there leaves enough certain to serve, or all there is."""
        prefill, decode = self._parts
        floors = _floor(prefill, pair[0], decode), _floor(decode, pair[1], prefill)
        return all(
            count >= min(floor, now)
            for count, floor, now in zip(self._serving(pair), floors, self._now, strict=True)
        )

    def lowered(self, pair: Pair) -> Pair:
        """As far down as single steps lead, the roles taking turns."""
        moved = True
        while moved:
            moved = False
            for step in ((1, 0), (0, 1)):
                lower = pair[0] - step[0], pair[1] - step[1]
                if min(lower) >= 0 and self.allows(lower):
                    pair, moved = lower, True
        return pair

    def _serving(self, pair: Pair) -> Pair:
        prefill, decode = (
            part.certain(partition) for part, partition in zip(self._parts, pair, strict=True)
        )
        return serving(prefill, decode), serving(decode, prefill)


def _floor(own: Part, partition: int, other: Part) -> int:
    """How many workers of `own` must go on serving when it is at `partition`."""
    alive = {slot.key for slot in other.slots if not slot.hopeless}
    lost = sum(
        not slot.new and (slot.hopeless or not may_pair(slot.key, alive))
        for slot in own.slots[:partition]
    )
    return max(own.required - lost, 0)


def _unlocked(prefill: Part, decode: Part) -> Pair:
    """Where everything has settled and no step is allowed, the new revision lacks a role for which
    there is no room: it takes one worker from the old revision. That may be an interruption (a
    role of one worker without a surge), but never an end."""
    here = prefill.released, decode.released
    if not (_settled(prefill) and _settled(decode)):
        return here
    if prefill.lacks_new:
        return max(here[0] - 1, 0), here[1]
    return here[0], max(here[1] - decode.lacks_new, 0)


def _settled(part: Part) -> bool:
    """Nothing that could become ready is on its way: every new worker is, old ones are or never."""
    return all(slot.ready or (slot.hopeless and not slot.new) for slot in part.slots)

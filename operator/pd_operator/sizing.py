"""Which pairs of replica counts are allowed, and which of them is nearest to a wanted one. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Workers of each role."""

    prefill: int
    decode: int

    def __str__(self) -> str:
        return f"{self.prefill}P{self.decode}D"

    @classmethod
    def parse(cls, text: str) -> Size:
        """From 2P4D, with at least one of each; raises ValueError."""
        match = re.fullmatch(r"([1-9]\d*)P([1-9]\d*)D", text)
        if match is None:
            raise ValueError(f"{text!r} is no size like 2P4D")
        return cls(prefill=int(match[1]), decode=int(match[2]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Least and most replicas of one role; equal where nothing may change them."""

    least: int
    most: int

    def clamp(self, replicas: int) -> int:
        return min(max(replicas, self.least), self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a size must keep to."""

    prefill: Bounds
    decode: Bounds
    ratio: tuple[Size, Size] | None = None
    """Least and greatest P:D ratio."""
    budget: int | None = None
    """Devices of all workers together."""
    prefill_devices: int = 1
    """Devices of one prefill worker."""
    decode_devices: int = 1

    def devices(self, size: Size) -> int:
        """Devices that a size takes."""
        return size.prefill * self.prefill_devices + size.decode * self.decode_devices

    def bounded(self, size: Size) -> Size:
        """The size with each role brought into its bounds."""
        return Size(prefill=self.prefill.clamp(size.prefill), decode=self.decode.clamp(size.decode))

    def allow(self, size: Size) -> bool:
        return self.bounded(size) == size and self.in_ratio(size) and self.in_budget(size)

    def in_budget(self, size: Size) -> bool:
        return self.budget is None or self.devices(size) <= self.budget

    def in_ratio(self, size: Size) -> bool:
        if self.ratio is None:
            return True
        low, high = self.ratio
        return (
            low.prefill * size.decode <= size.prefill * low.decode
            and size.prefill * high.decode <= high.prefill * size.decode
        )


def nearest(limits: Limits, wanted: Size) -> Size | None:
    """The allowed size that comes closest; None where no size is allowed.

    Giving both roles what they want comes first, then falling short by equal shares, then few
    devices. So a ratio raises its small side, and cuts the large side only where it cannot.
    """
    return min(
        _candidates(limits, wanted), key=lambda size: _cost(limits, wanted, size), default=None
    )


def _candidates(limits: Limits, wanted: Size) -> Iterator[Size]:
    """For each number of prefill workers the allowed decode count nearest to the wanted one."""
    for prefill in range(limits.prefill.least, limits.prefill.most + 1):
        decode = _decode_range(limits, prefill)
        if decode.least <= decode.most:
            yield Size(prefill=prefill, decode=decode.clamp(wanted.decode))


def _decode_range(limits: Limits, prefill: int) -> Bounds:
    least, most = limits.decode.least, limits.decode.most
    if limits.budget is not None:
        left = limits.budget - prefill * limits.prefill_devices
        most = min(most, left // limits.decode_devices) if limits.decode_devices else most
        most = most if left >= 0 else -1
    if limits.ratio is not None:
        low, high = limits.ratio
        least = max(least, -(-prefill * high.decode // high.prefill))
        most = min(most, prefill * low.decode // low.prefill)
    return Bounds(least=least, most=most)


def _cost(limits: Limits, wanted: Size, size: Size) -> tuple[float, float, int]:
    prefill = max(wanted.prefill - size.prefill, 0) / max(wanted.prefill, 1)
    decode = max(wanted.decode - size.decode, 0) / max(wanted.decode, 1)
    return max(prefill, decode), prefill + decode, limits.devices(size)

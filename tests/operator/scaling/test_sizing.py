"""Bounds, ratio and budget, and the nearest size within them."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_operator.sizing import Bounds, Limits, Size, nearest

ANY = Bounds(least=1, most=20)
COUNT = st.integers(1, 12)


def limits(**kwargs: object) -> Limits:
    return Limits(**({"prefill": ANY, "decode": ANY} | kwargs))


def ratio(low: str, high: str) -> tuple[Size, Size]:
    return Size.parse(low), Size.parse(high)


@pytest.mark.parametrize(
    ("wanted", "constraints", "expected"),
    [
        ("2P4D", {}, "2P4D"),
        ("30P4D", {}, "20P4D"),
        ("1P8D", {"ratio": ratio("1P4D", "2P1D")}, "2P8D"),
        ("9P3D", {"ratio": ratio("1P4D", "2P1D")}, "9P5D"),
        (
            "1P16D",
            {"ratio": ratio("1P4D", "2P1D"), "prefill": Bounds(least=1, most=2)},
            "2P8D",
        ),
        ("4P8D", {"budget": 6}, "2P4D"),
        ("4P4D", {"budget": 12, "prefill_devices": 4}, "2P4D"),
        ("6P6D", {"budget": 9, "ratio": ratio("1P2D", "1P2D")}, "3P6D"),
        ("4P4D", {"decode_devices": 0, "budget": 3}, "3P4D"),
    ],
    ids=[
        "allowed", "bounds", "ratio raises prefill", "ratio raises decode",
        "ratio cuts what cannot be raised", "budget cuts both alike", "budget counts devices",
        "budget and ratio", "workers without devices",
    ],
)  # fmt: skip
def test_nearest(wanted, constraints, expected):
    assert nearest(limits(**constraints), Size.parse(wanted)) == Size.parse(expected)


def test_nothing_is_nearest_where_nothing_is_allowed():
    assert nearest(limits(budget=1), Size(prefill=2, decode=2)) is None


@given(
    prefill=st.tuples(COUNT, COUNT),
    decode=st.tuples(COUNT, COUNT),
    bounds=st.tuples(st.tuples(COUNT, COUNT), st.tuples(COUNT, COUNT)),
    budget=st.none() | st.integers(0, 60),
    devices=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    wanted=st.tuples(st.integers(0, 15), st.integers(0, 15)),
)
def test_nearest_is_allowed_and_falls_short_least(prefill, decode, bounds, budget, devices, wanted):
    low, high = sorted(
        (Size(prefill=p, decode=d) for p, d in zip(prefill, decode, strict=True)),
        key=lambda size: size.prefill / size.decode,
    )
    limit = Limits(
        prefill=Bounds(least=min(bounds[0]), most=max(bounds[0])),
        decode=Bounds(least=min(bounds[1]), most=max(bounds[1])),
        ratio=(low, high),
        budget=budget,
        prefill_devices=devices[0],
        decode_devices=devices[1],
    )
    want = Size(prefill=wanted[0], decode=wanted[1])
    found = nearest(limit, want)
    sizes = [Size(prefill=p, decode=d) for p, d in product(range(1, 13), repeat=2)]
    allowed = [size for size in sizes if limit.allow(size)]
    assert (found is None) == (not allowed)
    if found is not None:
        assert limit.allow(found)
        assert shortfall(want, found) <= min(shortfall(want, size) for size in allowed) + 1e-9


def shortfall(wanted: Size, size: Size) -> float:
    return max(
        max(wanted.prefill - size.prefill, 0) / max(wanted.prefill, 1),
        max(wanted.decode - size.decode, 0) / max(wanted.decode, 1),
    )

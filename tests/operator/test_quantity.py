"""Quantities compare by value, whatever their spelling."""

from __future__ import annotations

from decimal import Decimal

import pytest

from pd_operator.quantity import equal, parse


@pytest.mark.parametrize(
    ("text", "value"),
    [(4, "4"), ("0.8", "0.8"), ("800m", "0.8"), ("20k", "20000"), ("16Gi", str(16 << 30)),
     (".5", "0.5"), ("1e3", "1000"), ("1E", str(10**18)), ("100n", "0.0000001")],
    ids=str,
)  # fmt: skip
def test_quantity_has_its_exact_value(text: int | str, value: str) -> None:
    assert parse(text) == Decimal(value)


@pytest.mark.parametrize("text", ["", "x", "1x", "1 Gi", "--1", "Gi"], ids=repr)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no quantity"):
        parse(text)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [("0.5", "500m", True), ("1Gi", "1024Mi", True), (1, "1", True), ("a", "a", True),
     ("a", "b", False), ("1", "2", False), (True, 1, False), (None, None, True), (1, None, False)],
    ids=str,
)  # fmt: skip
def test_equal_compares_values(a: object, b: object, same: bool) -> None:
    assert equal(a, b) is same

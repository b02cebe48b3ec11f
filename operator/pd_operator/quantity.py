"""Kubernetes quantities: 4, "0.8", 800m, 20k, 16Gi."""

from __future__ import annotations

import math
import re
from decimal import Decimal

_PATTERN = re.compile(r"^([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)([KMGTPE]i|[numkMGTPE]|e[0-9]+)?$")
_BINARY = {name: Decimal(1024) ** power for power, name in enumerate("KMGTPE", start=1)}
_DECIMAL = {
    name: Decimal(10) ** power
    for name, power in {
        "n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18,
    }.items()
}  # fmt: skip


def parse(value: int | str) -> Decimal:
    """Its value, exactly. Raises ValueError."""
    match = _PATTERN.match(str(value))
    if not match:
        raise ValueError(f"{value!r} is no quantity")
    number, unit = Decimal(match[1]), match[2] or ""
    if unit.startswith("e"):
        return number.scaleb(int(unit[1:]))
    return number * (_BINARY[unit[0]] if unit.endswith("i") else _DECIMAL[unit])


def equal(a: object, b: object) -> bool:
    """True for one value in two spellings, such as 0.5 and 500m."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if not (isinstance(a, int | str) and isinstance(b, int | str)):
        return a == b
    if a == b:
        return True
    try:
        return parse(a) == parse(b)
    except ValueError:
        return False


def share(value: int | str, of: int, *, up: bool = False) -> int:
    """A number or a percentage of `of`, rounded up or down."""
    text = str(value)
    if not text.endswith("%"):
        return int(text)
    exact = of * Decimal(text[:-1]) / 100
    return math.ceil(exact) if up else math.floor(exact)

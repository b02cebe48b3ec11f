"""Progress of loading, as a callback."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]
"""Called with a fraction 0 … 1 and what is being done; on the caller's thread."""


def portion(progress: Progress, start: float, end: float) -> Progress:
    """`progress` for a part of the work that takes it from `start` to `end`."""
    return lambda fraction, what: progress(start + fraction * (end - start), what)

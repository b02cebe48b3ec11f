"""Counting and logging what can happen very often."""

from __future__ import annotations

import logging
import threading
import time


class Tally:
    """Running totals by name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, float] = {}

    def add(self, name: str, amount: float = 1.0) -> None:
        """Count `amount` more."""
        with self._lock:
            self._totals[name] = self._totals.get(name, 0.0) + amount

    def totals(self) -> dict[str, float]:
        """A copy of all totals."""
        with self._lock:
            return dict(self._totals)


class LogLimiter:
    """Lets one line through in `interval_s`, and says how many it held back. One thread only."""

    def __init__(self, logger: logging.Logger, interval_s: float = 10.0) -> None:
        self._logger, self._interval_s = logger, interval_s
        self._next = 0.0
        self._held = 0

    def warning(self, message: str, *args: object) -> None:
        """Log as a warning, or hold back."""
        now = time.monotonic()
        if now < self._next:
            self._held += 1
            return
        self._logger.warning("%s (%d more held back)", message % args, self._held)
        self._next, self._held = now + self._interval_s, 0

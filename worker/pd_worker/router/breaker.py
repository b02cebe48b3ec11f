"""Circuit breaker of one worker: the memory of failures across requests.

closed ──N failures in a row──► open ──cooldown over──► half-open (one request tries it)
   ▲                             ▲                          │
   └──────────success────────────┼──────────────────────────┤
                                 └──failure: pause doubles──┘
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]
LONGEST_PAUSE = 8
"""In cooldowns."""


class Breaker:
    """Says whether a worker may get a request. Every `begin` is followed by one verdict."""

    def __init__(
        self, *, failures: int, cooldown_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._cooldown_s, self._clock = failures, cooldown_s, clock
        self.reset()

    def reset(self) -> None:
        """Forget everything: the process behind the address is another one."""
        self._failures = 0
        self._pause_s = self._cooldown_s
        self._open_until: float | None = None
        self._trying = False

    @property
    def state(self) -> BreakerState:
        if self._open_until is None:
            return "closed"
        return "half_open" if self._clock() >= self._open_until else "open"

    @property
    def allows(self) -> bool:
        """A request may be sent now."""
        return self.state == "closed" or self.wants_probe

    @property
    def wants_probe(self) -> bool:
        """The pause is over and nobody tries the worker yet."""
        return self.state == "half_open" and not self._trying

    def begin(self) -> None:
        """A request goes out."""
        self._trying = self._open_until is not None

    def success(self) -> None:
        """A request was answered."""
        self.reset()

    def failure(self) -> None:
        """A request failed through the worker's fault."""
        self._failures += 1
        if self._open_until is not None and self._trying:
            self._pause_s = min(self._pause_s * 2, self._cooldown_s * LONGEST_PAUSE)
            self._open_until = self._clock() + self._pause_s
        elif self._open_until is None and self._failures >= self._limit:
            self._open_until = self._clock() + self._pause_s
        self._trying = False

    def neutral(self) -> None:
        """A request ended without a verdict: the client left, or the request was wrong."""
        self._trying = False

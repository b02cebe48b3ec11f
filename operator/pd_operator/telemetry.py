"""The operator's own metrics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

PREFIX = "pdserve_operator"


class Telemetry:
    """Counters that the parts write, gauges that are read when asked."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "reconcile_seconds", "Time of one look at a deployment",
            namespace=PREFIX, registry=self.registry,
        )  # fmt: skip
        self._failures = Counter(
            "reconcile_failures", "Looks that failed, by kind of error", ["error"],
            namespace=PREFIX, registry=self.registry,
        )  # fmt: skip
        self._writes = Counter(
            "writes", "Writes to the API server, by what they are", ["kind"],
            namespace=PREFIX, registry=self.registry,
        )  # fmt: skip

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A number that is read at each scrape."""
        Gauge(name, text, namespace=PREFIX, registry=self.registry).set_function(read)

    def timed(self) -> AbstractContextManager[object]:
        """What runs inside is one look at a deployment."""
        return self._seconds.time()

    def failed(self, error: str) -> None:
        """It failed."""
        self._failures.labels(error).inc()

    def wrote(self, kind: str) -> None:
        """One write was accepted."""
        self._writes.labels(kind).inc()

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)

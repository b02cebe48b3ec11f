"""The router's numbers, in a registry of their own: counters it keeps, gauges read when asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pd_worker.router.worker import Worker

PREFIX = "pdserve_router"
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)


class Metrics:
    """What is counted while requests run."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter(
            "requests",
            "Requests answered, by path and status (499: the client left)",
            "path status",
        )
        self.attempts = self._counter("attempts", "Routes that requests were sent to")
        self.retries = self._counter("retries", "Attempts after a failed one")
        self.leg_failures = self._counter(
            "leg_failures", "First failing legs of attempts, by reason", "reason"
        )
        self.ttft = self._histogram("ttft_seconds", "From arrival to the first token sent on")
        self.seconds = self._histogram("request_seconds", "From arrival to the end of the answer")
        self.inflight = Gauge(
            "inflight", "Requests with workers", namespace=PREFIX, registry=self.registry
        )
        self.queued = Gauge(
            "queued", "Requests that wait here", namespace=PREFIX, registry=self.registry
        )
        self.registry.register(_Fleet(workers))

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, labels: str = "") -> Counter:
        return Counter(name, text, labels.split(), namespace=PREFIX, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, namespace=PREFIX, registry=self.registry, buckets=SECONDS)


class _Fleet(Collector):
    """Per-worker numbers, made from the workers that are listed now: none stay behind."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        self._workers = workers

    def collect(self) -> Iterator[Metric]:
        labels = ("worker", "role")
        up = GaugeMetricFamily(f"{PREFIX}_worker_healthy", "1 while it may be used", labels=labels)
        opened = GaugeMetricFamily(
            f"{PREFIX}_worker_breaker_open", "1 while it is barred for its failures", labels=labels
        )
        running = GaugeMetricFamily(
            f"{PREFIX}_worker_requests", "Legs that run on it", labels=labels
        )
        legs = CounterMetricFamily(f"{PREFIX}_worker_legs", "Legs sent to it", labels=labels)
        failed = CounterMetricFamily(
            f"{PREFIX}_worker_failures", "Legs that failed through its fault", labels=labels
        )
        for worker in self._workers:
            names = (worker.spec.url, worker.spec.role)
            up.add_metric(names, worker.state == "healthy")
            opened.add_metric(names, worker.breaker.state != "closed")
            running.add_metric(names, worker.requests)
            legs.add_metric(names, worker.sent)
            failed.add_metric(names, worker.failed)
        yield from (up, opened, running, legs, failed)

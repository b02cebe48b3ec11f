"""Prometheus metrics of a worker: what the API process measures and what the scheduler reports.

Token counts are the scheduler's and shown under its names; times are measured here. All carry the
labels model and role. No label takes values that clients choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pd_worker.messages import Heartbeat

LABELS = ("model", "role")
SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 180, 600)
GAP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5)


class SchedulerCollector(Collector):
    """The last heartbeat's gauges and counters."""

    def __init__(self, heartbeat: Callable[[], Heartbeat], labels: tuple[str, str]) -> None:
        self._heartbeat, self._labels = heartbeat, labels

    def collect(self) -> Iterable[Metric]:
        """Called at every scrape."""
        beat = self._heartbeat()
        age = GaugeMetricFamily("pdserve_loop_age_seconds", "Age of the loop's turn", labels=LABELS)
        age.add_metric(self._labels, beat.loop_age_s)
        yield age
        for name, value in sorted(beat.gauges.items()):
            gauge = GaugeMetricFamily(f"pdserve_{name}", "From the scheduler", labels=LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        for name, value in sorted(beat.counters.items()):
            counter = CounterMetricFamily(f"pdserve_{name}", "From the scheduler", labels=LABELS)
            counter.add_metric(self._labels, value)
            yield counter


class Metrics:
    """The registry of one worker."""

    def __init__(self, model: str, role: str, heartbeat: Callable[[], Heartbeat]) -> None:
        self._registry = CollectorRegistry()
        labels = (model, role)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            family = Histogram(name, text, LABELS, buckets=buckets, registry=self._registry)
            return family.labels(*labels)

        self.ttft = histogram("pdserve_ttft_seconds", "Arrival to first token", SECONDS)
        self.itl = histogram("pdserve_itl_seconds", "Between a sample's tokens", GAP_SECONDS)
        self.e2e = histogram("pdserve_request_seconds", "Arrival to the end", SECONDS)
        self._requests = Counter(
            "pdserve_finished_requests",
            "Requests by how they ended",
            (*LABELS, "finish"),
            registry=self._registry,
        )
        self._labels = labels
        self._registry.register(SchedulerCollector(heartbeat, labels))

    def count(self, finish: str) -> None:
        """One more request that ended so: stop, length, abort, cancelled or an error's code."""
        self._requests.labels(*self._labels, finish).inc()

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)

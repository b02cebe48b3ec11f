"""What a worker's own /metrics say, as numbers that scaling and draining decide on. Pure.

Scraping is reconcile's: it hands the text in with the time, and keeps one `Scrape` a worker, since
rates and mean latencies are differences between two of them. Two vocabularies are known: pdserve's
and SGLang's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """Sample names of one engine."""

    queue: str
    running: str
    prealloc_queue: str
    transfer_queue: str
    kv_usage: str
    ttft: str
    """A histogram, without _sum and _count; so is itl."""
    itl: str
    prompt_tokens: str
    cached_tokens: str
    output_tokens: str
    busy_seconds: str
    """Seconds that steps took; empty where the engine does not count them."""
    busy: tuple[str, ...]
    """Gauges of every place where a request can be, besides running and queue."""


PDSERVE = Names(
    queue="pdserve_num_waiting_reqs",
    running="pdserve_num_running_reqs",
    prealloc_queue="pdserve_num_decode_prealloc_queue_reqs",
    transfer_queue="pdserve_num_decode_transfer_queue_reqs",
    kv_usage="pdserve_kv_usage",
    ttft="pdserve_ttft_seconds",
    itl="pdserve_itl_seconds",
    prompt_tokens="pdserve_prompt_tokens_total",
    cached_tokens="pdserve_cached_tokens_total",
    output_tokens="pdserve_generation_tokens_total",
    busy_seconds="pdserve_busy_seconds_total",
    busy=(
        "pdserve_num_retracted_reqs",
        "pdserve_num_prefill_bootstrap_queue_reqs",
        "pdserve_num_prefill_inflight_queue_reqs",
        "pdserve_num_decode_prealloc_queue_reqs",
        "pdserve_num_decode_transfer_queue_reqs",
        "pdserve_num_decode_prebuilt_queue_reqs",
        "pdserve_num_draining_reqs",
    ),
)
SGLANG = Names(
    queue="sglang:num_queue_reqs",
    running="sglang:num_running_reqs",
    prealloc_queue="sglang:num_decode_prealloc_queue_reqs",
    transfer_queue="sglang:num_decode_transfer_queue_reqs",
    kv_usage="sglang:token_usage",
    ttft="sglang:time_to_first_token_seconds",
    itl="sglang:inter_token_latency_seconds",
    prompt_tokens="sglang:prompt_tokens_total",
    cached_tokens="sglang:cached_tokens_total",
    output_tokens="sglang:generation_tokens_total",
    busy_seconds="",
    busy=(
        "sglang:num_prefill_prealloc_queue_reqs",
        "sglang:num_prefill_bootstrap_queue_reqs",
        "sglang:num_prefill_inflight_queue_reqs",
        "sglang:num_decode_prealloc_queue_reqs",
        "sglang:num_decode_transfer_queue_reqs",
    ),
)
NAMES = {"Pdserve": PDSERVE, "SGLang": SGLANG}
"""By engine.type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One worker's samples at one moment."""

    at: float
    """Seconds of the caller's clock."""
    total: Mapping[str, float]
    """By sample name, summed over label sets (ranks)."""
    peak: Mapping[str, float]
    """By sample name, the largest of the label sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """What one worker does; None is a number that it did not give."""

    at: float
    """When it was scraped."""
    queue: float | None = None
    """Requests that wait for a step."""
    running: float | None = None
    """Requests in the running batch."""
    ttft_s: float | None = None
    """Mean arrival to first token since the scrape before."""
    itl_s: float | None = None
    """Mean gap between two tokens of a stream since the scrape before."""
    prompt_tokens_s: float | None = None
    """Prompt tokens that were computed (not found in the prefix cache), each second."""
    output_tokens_s: float | None = None
    """Tokens given out each second."""
    utilization: float | None = None
    """Share of the time that steps took, 0 to 1."""
    kv_usage: float | None = None
    """Share of the KV pool in use, 0 to 1."""
    prealloc_queue: float | None = None
    """Requests that wait for decode's memory."""
    transfer_queue: float | None = None
    """Requests whose KV is on its way."""
    busy: float | None = None
    """Requests anywhere in the worker; 0 means that it may stop."""


def parse(text: str, at: float) -> Scrape:
    """Read Prometheus text; of samples with equal name and labels the last one counts.

    Raises ValueError where it is no such text.
    """
    samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if math.isfinite(sample.value):
                samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    total: dict[str, float] = {}
    peak: dict[str, float] = {}
    for (name, _), value in samples.items():
        total[name] = total.get(name, 0.0) + value
        peak[name] = max(peak.get(name, value), value)
    return Scrape(at=at, total=total, peak=peak)


def load(names: Names, before: Scrape | None, after: Scrape) -> WorkerLoad:
    """The load at `after`; without a scrape before it (or after a restart) no rates."""
    span = _Span(before, after)
    queue, running = after.total.get(names.queue), after.total.get(names.running)
    idle = queue == 0 and running == 0
    return WorkerLoad(
        at=after.at,
        queue=queue,
        running=running,
        ttft_s=span.mean(names.ttft, 0.0 if queue == 0 else None),
        itl_s=span.mean(names.itl, 0.0 if idle else None),
        prompt_tokens_s=span.rate(names.prompt_tokens, minus=names.cached_tokens),
        output_tokens_s=span.rate(names.output_tokens),
        utilization=span.rate(names.busy_seconds),
        kv_usage=after.peak.get(names.kv_usage),
        prealloc_queue=after.total.get(names.prealloc_queue),
        transfer_queue=after.total.get(names.transfer_queue),
        busy=_busy(names, after),
    )


def _busy(names: Names, scrape: Scrape) -> float | None:
    if names.running not in scrape.total or names.queue not in scrape.total:
        return None
    return sum(scrape.total.get(name, 0.0) for name in (names.running, names.queue, *names.busy))


class _Span:
    """The time between two scrapes of one process."""

    def __init__(self, before: Scrape | None, after: Scrape) -> None:
        self._before, self._after = before, after
        self._seconds = after.at - before.at if before else 0.0

    def _delta(self, name: str) -> float | None:
        """Growth of a counter; None where it is unknown, or shrank because the worker restarted."""
        if self._before is None or self._seconds <= 0 or name not in self._after.total:
            return None
        grown = self._after.total[name] - self._before.total.get(name, 0.0)
        return grown if grown >= 0 else None

    def rate(self, name: str, minus: str = "") -> float | None:
        """Growth each second, without that of `minus`."""
        grown = self._delta(name)
        if grown is None:
            return None
        return max(grown - (self._delta(minus) or 0.0), 0.0) / self._seconds

    def mean(self, histogram: str, if_none: float | None) -> float | None:
        """Mean of what a histogram took in; `if_none` where it took in nothing."""
        count, total = self._delta(f"{histogram}_count"), self._delta(f"{histogram}_sum")
        if count is None or total is None:
            return None
        return total / count if count else if_none

"""From what was measured of requests to the numbers that are reported. Pure.

TTFT is the time to the first token, ITL the gap between two pieces of a stream, TPOT the mean time
of a token after the first. A stall of one stream hides in the percentiles over all gaps when there
are many tokens, so the worst gap of each request is reported beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "max": 1.0}

Row = dict[str, float]
"""A value for each of QUANTILES; empty where nothing was measured."""


@dataclass(slots=True, kw_only=True)
class Record:
    """One request. Times are seconds of the monotonic clock."""

    sent: float
    arrivals: list[float] = field(default_factory=list)
    """When each piece with new tokens arrived."""
    output_tokens: int = 0
    error: str = ""
    """Why it failed; empty for success. A failed request counts in no other number."""

    @property
    def ttft(self) -> float:
        return self.arrivals[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def tpot(self) -> float:
        """Needs two tokens."""
        return (self.arrivals[-1] - self.arrivals[0]) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Numbers of one group of requests; latencies in milliseconds."""

    requests: int
    errors: int
    output_tokens: int
    seconds: float
    """From the first request sent to the last piece, summed over rounds."""
    tokens_per_s: float
    latencies: dict[str, Row]
    """TTFT, ITL, worst ITL (of each request), TPOT."""


def quantile(values: Sequence[float], q: float) -> float:
    """The value below which a share `q` of the sorted `values` lies, linear in between."""
    position = q * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (position - low)


def row(seconds: Iterable[float]) -> Row:
    """The quantiles of some durations, in milliseconds."""
    values = sorted(1000 * value for value in seconds)
    return {name: quantile(values, q) for name, q in QUANTILES.items()} if values else {}


def summarise(rounds: Sequence[Sequence[Record]]) -> Summary:
    """The numbers of a group that was measured in several rounds."""
    records = [record for round_ in rounds for record in round_]
    good = [record for record in records if not record.error and record.arrivals]
    seconds = sum(_duration(round_) for round_ in rounds)
    tokens = sum(record.output_tokens for record in good)
    latencies = {
        "TTFT": row(record.ttft for record in good),
        "ITL": row(gap for record in good for gap in record.gaps),
        "worst ITL": row(max(record.gaps) for record in good if record.gaps),
        "TPOT": row(record.tpot for record in good if record.output_tokens > 1),
    }
    return Summary(
        requests=len(records),
        errors=len(records) - len(good),
        output_tokens=tokens,
        seconds=seconds,
        tokens_per_s=tokens / seconds if seconds else 0.0,
        latencies=latencies,
    )


def ratios(baseline: Summary, other: Summary) -> dict[str, Row]:
    """How many times lower each latency of `other` is than the baseline's."""
    return {
        name: {key: baseline.latencies[name][key] / value for key, value in row_.items() if value}
        for name, row_ in other.latencies.items()
        if baseline.latencies[name]
    }


def _duration(records: Sequence[Record]) -> float:
    good = [record for record in records if not record.error and record.arrivals]
    if not good:
        return 0.0
    return max(r.arrivals[-1] for r in good) - min(r.sent for r in good)

"""Is KV moving? Judged from the workers' own counters. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pd_operator.conditions import Judgement, no, yes
from pd_operator.metrics import Scrape

SUCCEEDED = ("pdserve_kv_transfers_success_total", "sglang:kv_transfer_latency_ms_count")
FAILED = (
    "pdserve_kv_transfers_failed_total",
    "sglang:num_transfer_failed_reqs_total",
    "sglang:num_bootstrap_failed_reqs_total",
)
FINISHED = ("pdserve_requests_total",)
"""Of decode: requests that ended, in any way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counters of one worker."""

    succeeded: float = 0.0
    failed: float = 0.0
    finished: float = 0.0

    @classmethod
    def of(cls, scrape: Scrape) -> Totals:
        """From what it told."""
        return cls(
            succeeded=_sum(scrape, SUCCEEDED),
            failed=_sum(scrape, FAILED),
            finished=_sum(scrape, FINISHED),
        )


def _sum(scrape: Scrape, series: Iterable[str]) -> float:
    return sum(scrape.total.get(name, 0.0) for name in series)


def judge(
    before: Mapping[str, Totals],
    after: Mapping[str, Totals],
    decode: Iterable[str],
    last: Judgement | None,
) -> Judgement | None:
    """KVTransferHealthy from two looks at the same workers; `last` where nothing has moved.

    `decode` names the decode workers: what they finish without a transfer was never transferred.
    """
    pairs = {name: (before[name], after[name]) for name in after if name in before}
    succeeded = sum(max(b.succeeded - a.succeeded, 0.0) for a, b in pairs.values())
    failed = sum(max(b.failed - a.failed, 0.0) for a, b in pairs.values())
    finished = sum(
        max(pairs[name][1].finished - pairs[name][0].finished, 0.0)
        for name in decode
        if name in pairs
    )
    if failed and failed >= succeeded:
        return no("TransferFailing", "most KV transfers fail; see the prefill workers' logs")
    if succeeded:
        return yes("Transferring", "KV is being transferred")
    if finished:
        return no("NoTransferSeen", "decode finishes requests, but no KV was transferred to it")
    return last

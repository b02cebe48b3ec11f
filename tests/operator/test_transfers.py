"""Whether KV moves, from two looks at the workers' counters."""

from __future__ import annotations

import pytest

from pd_operator.conditions import yes
from pd_operator.metrics import parse
from pd_operator.transfers import Totals, judge

ZERO = {"p": Totals(), "d": Totals()}


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        (Totals(succeeded=3), Totals(finished=3), "True Transferring"),
        (Totals(succeeded=5, failed=1), Totals(), "True Transferring"),
        (Totals(succeeded=1, failed=2), Totals(), "False TransferFailing"),
        (Totals(), Totals(finished=2), "False NoTransferSeen"),
        (Totals(), Totals(), "None"),
        (Totals(succeeded=-5), Totals(), "None"),
    ],
    ids=["all", "most", "few", "none", "idle", "restarted"],
)
def test_judgement(prefill: Totals, decode: Totals, expected: str) -> None:
    found = judge(ZERO, {"p": prefill, "d": decode}, ["d"], None)
    assert (f"{found.truth} {found.reason}" if found else "None") == expected


def test_silence_keeps_the_last_judgement() -> None:
    last = yes("Transferring", "x")
    assert judge(ZERO, ZERO, ["d"], last) is last
    assert judge({}, {"p": Totals(succeeded=9)}, [], None) is None


def test_totals_of_both_engines() -> None:
    text = (
        'pdserve_kv_transfers_success_total{role="prefill"} 4\n'
        'pdserve_kv_transfers_failed_total{role="prefill"} 1\n'
        'pdserve_requests_total{finish="stop"} 2\npdserve_requests_total{finish="length"} 1\n'
        'sglang:num_transfer_failed_reqs_total{a="b"} 7\n'
        'sglang:kv_transfer_latency_ms_count{a="b"} 5\n'
    )
    assert Totals.of(parse(text, 0)) == Totals(succeeded=9, failed=8, finished=3)

"""What the operator looks for in a worker's /metrics is there, under that name."""

from __future__ import annotations

from dataclasses import fields

import pytest

from pd_operator.metrics import PDSERVE, load, parse
from pd_worker.api.metrics import Metrics
from pd_worker.messages import Heartbeat
from tests.worker.disagg.test_pair_interleavings import Pair


def text(role: str) -> str:
    """/metrics of an idle worker."""
    pair = Pair(num_pages=16, page_size=4, chunk=64, max_running=2, checksum=False)
    scheduler = pair.prefill if role == "prefill" else pair.decode
    beat = Heartbeat(loop_age_s=0.0, gauges=scheduler.gauges(), counters=dict(scheduler.counters()))
    return Metrics("tiny", role, lambda: beat).text().decode()


@pytest.fixture(scope="module")
def names() -> set[str]:
    """Sample names of both roles."""
    found: set[str] = set()
    for role in ("prefill", "decode"):
        found |= parse(text(role), 0.0).total.keys()
    return found


@pytest.mark.parametrize("field", [f.name for f in fields(PDSERVE) if f.name != "busy"])
def test_series_exists(field: str, names: set[str]) -> None:
    name = getattr(PDSERVE, field)
    assert name in names or f"{name}_count" in names


@pytest.mark.parametrize("name", PDSERVE.busy)
def test_place_where_a_request_can_be_exists(name: str, names: set[str]) -> None:
    assert name in names


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_idle_worker_is_seen_to_be_idle(role: str) -> None:
    assert load(PDSERVE, None, parse(text(role), 0.0)).busy == 0

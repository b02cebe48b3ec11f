"""Prometheus text of a worker becomes its load."""

from __future__ import annotations

import pytest

from pd_operator.metrics import PDSERVE, SGLANG, WorkerLoad, load, parse

LABELS = '{model="m",role="prefill"}'
BEFORE = f"""
# TYPE pdserve_num_waiting_reqs gauge
pdserve_num_waiting_reqs{LABELS} 3
# TYPE pdserve_num_running_reqs gauge
pdserve_num_running_reqs{LABELS} 2
# TYPE pdserve_num_draining_reqs gauge
pdserve_num_draining_reqs{LABELS} 1
# TYPE pdserve_kv_usage gauge
pdserve_kv_usage{LABELS} 0.5
# TYPE pdserve_prompt_tokens counter
pdserve_prompt_tokens_total{LABELS} 1000
# TYPE pdserve_cached_tokens counter
pdserve_cached_tokens_total{LABELS} 100
# TYPE pdserve_ttft_seconds histogram
pdserve_ttft_seconds_bucket{{le="+Inf"}} 4
pdserve_ttft_seconds_count{LABELS} 4
pdserve_ttft_seconds_sum{LABELS} 2
"""
AFTER = (
    BEFORE.replace("_total" + LABELS + " 1000", "_total" + LABELS + " 3000")
    .replace("_total" + LABELS + " 100\n", "_total" + LABELS + " 600\n")
    .replace("_count" + LABELS + " 4", "_count" + LABELS + " 6")
    .replace("_sum" + LABELS + " 2", "_sum" + LABELS + " 5")
)


def test_gauges_need_one_scrape():
    assert load(PDSERVE, None, parse(BEFORE, 0.0)) == WorkerLoad(
        at=0.0, queue=3, running=2, kv_usage=0.5, busy=6
    )


def test_rates_and_means_are_of_the_time_between_two_scrapes():
    found = load(PDSERVE, parse(BEFORE, 0.0), parse(AFTER, 10.0))
    assert found.prompt_tokens_s == 150
    assert found.ttft_s == 1.5
    assert found.at == 10.0


def test_restarted_worker_has_no_rates_at_first():
    found = load(PDSERVE, parse(AFTER, 0.0), parse(BEFORE, 10.0))
    assert (found.prompt_tokens_s, found.ttft_s) == (None, None)
    assert found.queue == 3


@pytest.mark.parametrize(
    ("queue", "ttft"), [("3", None), ("0", 0.0)], ids=["stuck", "nothing to do"]
)
def test_no_first_token_is_good_news_only_without_a_queue(queue, ttft):
    text = BEFORE.replace(f"waiting_reqs{LABELS} 3", f"waiting_reqs{LABELS} {queue}")
    assert load(PDSERVE, parse(text, 0.0), parse(text, 10.0)).ttft_s == ttft


def test_ranks_are_summed_but_their_pools_are_not():
    text = "".join(
        f'sglang:num_queue_reqs{{tp_rank="{rank}"}} {rank + 1}\n'
        f'sglang:token_usage{{tp_rank="{rank}"}} 0.{rank + 4}\n'
        for rank in range(2)
    )
    found = load(SGLANG, None, parse(text, 0.0))
    assert (found.queue, found.kv_usage) == (3, 0.5)


def test_of_equal_samples_the_last_one_counts():
    text = "pdserve_kv_usage 0.1\npdserve_kv_usage 0.2\n"
    assert load(PDSERVE, None, parse(text, 0.0)).kv_usage == 0.2


def test_nan_is_no_value():
    assert load(PDSERVE, None, parse("pdserve_kv_usage NaN\n", 0.0)).kv_usage is None


def test_unknown_occupancy_is_not_idle():
    assert load(PDSERVE, None, parse("pdserve_kv_usage 0\n", 0.0)).busy is None


def test_text_that_is_not_prometheus_is_refused():
    with pytest.raises(ValueError, match="invalid metric name"):
        parse("<html>not found</html>", 0.0)

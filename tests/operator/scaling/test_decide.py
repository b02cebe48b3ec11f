"""One decision at a time: what the metrics of a moment, and of the moments before, lead to."""

from __future__ import annotations

from typing import Any

import pytest

from pd_operator.metrics import WorkerLoad
from pd_operator.proposal import Limit, MetricType, Target
from pd_operator.scaling import (
    STALE_S,
    Decision,
    History,
    Observed,
    RoleObserved,
    RoleScaling,
    ScalingSpec,
    decide,
)
from pd_operator.sizing import Bounds, Size
from pd_operator.stabilize import RoleHistory, Windows

IDLE = {"queue": 0, "running": 0, "transfer_queue": 0, "prealloc_queue": 0}


def scaled(*targets: tuple[MetricType, float], least: int = 1, most: int = 20) -> RoleScaling:
    return RoleScaling(
        bounds=Bounds(least=least, most=most),
        targets=tuple(Target(type=name, value=value) for name, value in targets),
        windows=Windows(up_s=0, down_s=0),
    )


def fixed(replicas: int) -> RoleScaling:
    return RoleScaling(bounds=Bounds(least=replicas, most=replicas))


def role(replicas: int, ready: int | None = None, **load: Any) -> RoleObserved:
    ready = replicas if ready is None else ready
    where = {name: load.pop(name) for name in ("starting", "unschedulable") if name in load}
    return RoleObserved(
        replicas=replicas,
        ready=ready,
        loads=(WorkerLoad(**({"at": 0.0} | IDLE | load)),) * ready,
        **where,
    )


def settled(spec: ScalingSpec, observed: Observed, now: float = 1.0, **limits: Limit) -> Decision:
    """The decision once the same was seen twice, so that no window holds it back."""
    history = History(
        prefill=RoleHistory(limit=limits.get("prefill")),
        decode=RoleHistory(limit=limits.get("decode")),
    )
    return decide(spec, observed, decide(spec, observed, history, 0.0).history, now)


def prefill_only(role_spec: RoleScaling, observed: RoleObserved, **limits: Limit) -> Decision:
    spec = ScalingSpec(prefill=role_spec, decode=fixed(4))
    return settled(spec, Observed(prefill=observed, decode=role(4)), **limits)


def decode_only(role_spec: RoleScaling, observed: RoleObserved) -> Decision:
    spec = ScalingSpec(prefill=fixed(4), decode=role_spec)
    return settled(spec, Observed(prefill=role(4), decode=observed))


@pytest.mark.parametrize(
    ("target", "load", "replicas"),
    [
        (("PrefillTokenRate", 1000), {"prompt_tokens_s": 1900}, 8),
        (("PrefillTokenRate", 1000), {"prompt_tokens_s": 1090}, 4),
        (("PrefillTokenRate", 1000), {"prompt_tokens_s": 910}, 4),
        (("PrefillTokenRate", 1000), {"prompt_tokens_s": 400}, 2),
        (("QueueDepth", 4), {"queue": 5}, 5),
        (("QueueDepth", 4), {"queue": 4000}, 8),
        (("QueueDepth", 4), {"queue": 4}, 4),
        (("QueueDepth", 4), {"queue": 0}, 3),
        (("QueueDepth", 4), {"queue": 0, "utilization": 0.7}, 4),
        (("QueueDepth", 4), {"queue": 0, "utilization": 0.3}, 2),
        (("TTFT", 0.8), {"ttft_s": 1.2}, 6),
        (("TTFT", 0.8), {"ttft_s": 0.4}, 3),
    ],
    ids=[
        "share doubles", "share within tolerance above", "share within tolerance below",
        "share halves", "pressure raises", "pressure at most doubles", "pressure at its target",
        "relaxed: one less", "relaxed, but busy", "relaxed and idle", "late", "early",
    ],
)  # fmt: skip
def test_prefill_follows_its_metrics(target, load, replicas):
    assert prefill_only(scaled(target), role(4, **load)).prefill.replicas == replicas


@pytest.mark.parametrize(
    ("target", "load", "replicas"),
    [
        (("KVUtilization", 0.8), {"kv_usage": 0.4}, 2),
        (("KVUtilization", 0.8), {"kv_usage": 1.0}, 5),
        (("KVUtilization", 0.8), {"kv_usage": 1.0, "running": 10, "prealloc_queue": 5}, 8),
        (("KVUtilization", 0.8), {"kv_usage": 1.0, "running": 10, "prealloc_queue": 900}, 8),
        (("ITL", 0.04), {"itl_s": 0.05}, 5),
        (("ITL", 0.04), {"itl_s": 0.02}, 2),
        (("RunningRequests", 30), {"running": 60}, 8),
        (("PreallocQueue", 2), {"prealloc_queue": 3}, 6),
        (("PreallocQueue", 0), {"prealloc_queue": 1}, 8),
        (("PreallocQueue", 0), {"prealloc_queue": 0}, 3),
    ],
    ids=[
        "memory free", "memory full", "memory full and requests wait", "at most doubled",
        "slow", "quick", "many run", "many wait", "none may wait, but one does",
        "none may wait, and none does",
    ],
)  # fmt: skip
def test_decode_follows_its_metrics(target, load, replicas):
    assert decode_only(scaled(target), role(4, **load)).decode.replicas == replicas


def test_the_metric_that_asks_for_most_counts():
    spec = scaled(("KVUtilization", 0.8), ("ITL", 0.04))
    decision = decode_only(spec, role(4, kv_usage=0.2, itl_s=0.08)).decode
    assert decision.replicas == 8
    assert decision.message == "ITL is 0.08 of 0.04"


@pytest.mark.parametrize(
    ("learned", "replicas"), [(250.0, 4), (500.0, 2)], ids=["too close", "far enough"]
)
def test_pressure_lowers_no_further_than_what_was_seen_not_to_do(learned, replicas):
    limit = Limit(at=0.0, tokens_s=learned)
    observed = role(4, queue=0, prompt_tokens_s=200)
    decision = prefill_only(scaled(("QueueDepth", 4)), observed, prefill=limit)
    assert decision.prefill.replicas == replicas


def test_growing_under_pressure_teaches_the_limit():
    decision = prefill_only(scaled(("QueueDepth", 4)), role(4, queue=9, prompt_tokens_s=700))
    assert decision.history.prefill.limit == Limit(at=1.0, tokens_s=700)


def test_growing_by_a_share_teaches_nothing():
    decision = prefill_only(scaled(("PrefillTokenRate", 100)), role(4, prompt_tokens_s=700))
    assert decision.history.prefill.limit is None


@pytest.mark.parametrize(
    ("observed", "reason"),
    [
        (role(4, ready=0), "NoReadyWorkers"),
        (role(4, at=-STALE_S, queue=99), "MetricsStale"),
        (role(4, queue=None), "MetricsStale"),
        (RoleObserved(replicas=4, ready=4), "MetricsStale"),
        (RoleObserved(replicas=4, ready=4, loads=role(2).loads), "MetricsStale"),
        (role(4, ready=3, queue=99, unschedulable=1), "InsufficientCapacity"),
        (role(4, ready=3, queue=99, starting=1), "AsNeeded"),
    ],
    ids=["none ready", "old", "no value", "none", "a part relaxed", "no node", "still starting"],
)
def test_size_is_kept(observed, reason):
    decision = prefill_only(scaled(("QueueDepth", 4)), observed).prefill
    assert (decision.replicas, decision.reason) == (4, reason)


def test_broken_pod_does_not_stop_growth():
    decision = prefill_only(scaled(("QueueDepth", 4)), role(4, ready=3, queue=99)).prefill
    assert decision.replicas == 8


def test_a_part_of_the_workers_may_still_ask_for_more():
    observed = RoleObserved(replicas=4, ready=4, loads=role(2, queue=8).loads)
    assert prefill_only(scaled(("QueueDepth", 4)), observed).prefill.replicas == 8


def test_pods_without_a_node_do_not_stop_a_scale_down():
    observed = role(4, ready=2, queue=0, prompt_tokens_s=0, unschedulable=2)
    limit = Limit(at=0.0, tokens_s=100)
    decision = prefill_only(scaled(("QueueDepth", 4)), observed, prefill=limit).prefill
    assert decision.replicas == 1


BOTH = ScalingSpec(prefill=scaled(("QueueDepth", 4)), decode=scaled(("KVUtilization", 0.8)))


def test_prefill_does_not_grow_while_decode_is_the_bottleneck():
    observed = Observed(
        prefill=role(2, queue=50),
        decode=role(2, kv_usage=1.0, running=20, transfer_queue=5, prealloc_queue=3),
    )
    decision = settled(BOTH, observed)
    assert (decision.prefill.replicas, decision.prefill.reason) == (2, "DecodeBottleneck")
    assert decision.decode.replicas > 2


def test_decode_does_not_grow_while_its_memory_waits_for_prefill():
    observed = Observed(
        prefill=role(2, queue=50),
        decode=role(2, kv_usage=1.0, running=5, transfer_queue=20, prealloc_queue=3),
    )
    decision = settled(BOTH, observed)
    assert (decision.decode.replicas, decision.decode.reason) == (2, "PrefillBottleneck")
    assert decision.prefill.replicas == 4


def test_ratio_and_budget_are_named_where_they_decide():
    observed = Observed(prefill=role(2, queue=8), decode=role(2, kv_usage=0.8))
    ratio = ScalingSpec(
        prefill=BOTH.prefill, decode=BOTH.decode, ratio=(Size.parse("1P4D"), Size.parse("1P1D"))
    )
    budget = ScalingSpec(prefill=BOTH.prefill, decode=BOTH.decode, budget=4)
    decision = settled(ratio, observed)
    assert (decision.decode.replicas, decision.decode.reason) == (4, "RatioClamped")
    decision = settled(budget, observed)
    assert (decision.prefill.replicas, decision.prefill.reason) == (2, "BudgetClamped")


def test_changed_bounds_apply_at_once():
    spec = ScalingSpec(prefill=scaled(("QueueDepth", 4), least=6), decode=fixed(4))
    observed = Observed(prefill=role(2, queue=4), decode=role(4))
    decision = decide(spec, observed, History(), 0.0).prefill
    assert (decision.replicas, decision.reason) == (6, "BoundsClamped")


def test_impossible_limits_change_nothing():
    spec = ScalingSpec(prefill=fixed(3), decode=fixed(3), budget=2)
    decision = settled(spec, Observed(prefill=role(3), decode=role(3)))
    assert (decision.prefill.replicas, decision.decode.replicas) == (3, 3)


@pytest.mark.parametrize(
    ("values", "replicas"),
    [
        ([0.8, 1.6], 2),
        ([1.6, 1.6, 0.8, 1.6], 2),
        ([1.6, 1.6, 1.6, 1.6], 4),
        ([0.2] * 20, 2),
        ([0.2] * 22, 1),
        ([0.2] * 21 + [0.8], 2),
    ],
    ids=["one high", "dip", "high throughout", "not low long enough", "low long enough", "peak"],
)
def test_windows_keep_noise_away(values, replicas):
    decode = RoleScaling(
        bounds=Bounds(least=1, most=20), targets=(Target(type="KVUtilization", value=0.8),)
    )
    spec, history = ScalingSpec(prefill=fixed(1), decode=decode), History()
    for step, value in enumerate(values):
        observed = Observed(prefill=role(1), decode=role(2, kv_usage=value, at=15.0 * step))
        decision = decide(spec, observed, history, 15.0 * step)
        history = decision.history
    assert decision.decode.replicas == replicas


def test_memory_with_a_gap_begins_anew():
    decode = RoleScaling(
        bounds=Bounds(least=1, most=20), targets=(Target(type="KVUtilization", value=0.8),)
    )
    spec = ScalingSpec(prefill=fixed(1), decode=decode)
    observed = Observed(prefill=role(1), decode=role(2, kv_usage=0.1))
    history = decide(spec, observed, History(), 0.0).history
    later = Observed(prefill=role(1), decode=role(2, kv_usage=0.1, at=900.0))
    assert decide(spec, later, history, 900.0).decode.replicas == 2

"""Steps of the StatefulSets: who writes replicas, how a rollout is counted in pods."""

from __future__ import annotations

from typing import Any

import pytest

from pd_operator import names
from pd_operator.decisions import Decisions, RoleStep, Thread, decide
from pd_operator.kinds import STATEFUL_SET
from pd_operator.metrics import WorkerLoad
from pd_operator.observed import observe
from pd_operator.resource import Manifest, Resource
from pd_operator.store import Store
from tests.operator.builders import NOW, pod, populated, resource, time_at, waiting


def decided(made: Resource, store: Store, thread: Thread | None = None, **loads: Any) -> Decisions:
    return decide(made, observe(made, store), loads, thread or Thread(), NOW)


def pods_of(made: Resource, **counts: int) -> list[Manifest]:
    return [pod(made, role, ordinal) for role, n in counts.items() for ordinal in range(n)]


def scaled(provider: str, **more: Any) -> dict[str, Any]:
    return {"autoscaling": {"provider": provider, "maxReplicas": 5, **more}, "gpus": 0}


def with_replicas(store: Store, made: Resource, role: str, replicas: int, *owners: str) -> Store:
    found = store.of(made.key, STATEFUL_SET)[names.workload("m", role)]
    changed = found | {"spec": found["spec"] | {"replicas": replicas}}
    meta = changed["metadata"] | {"resourceVersion": "9"}
    fields = [
        {"manager": o, "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}}
        for o in owners
    ]
    store.put(STATEFUL_SET, changed | {"metadata": meta | {"managedFields": fields}})
    return store


def test_without_autoscaling_the_spec_rules() -> None:
    made = resource()
    store = with_replicas(populated(made, *pods_of(made, prefill=1, decode=2)), made, "decode", 7)
    assert decided(made, store).steps["decode"] == RoleStep(partition=0, pods=2)


@pytest.mark.parametrize("provider", ["HPA", "KEDA", "External"])
@pytest.mark.parametrize("replicas", [0, 1, 4, 9])
def test_what_others_scale_is_never_written(provider: str, replicas: int) -> None:
    extra = {"prometheusAddress": "http://p"} if provider == "KEDA" else {}
    made = resource(decode=scaled(provider, **extra))
    store = populated(made, *pods_of(made, prefill=1, decode=replicas))
    with_replicas(store, made, "decode", replicas, "kube-controller-manager")
    assert decided(made, store).steps["decode"].pods is None


def test_what_others_scale_begins_with_the_spec_within_bounds() -> None:
    made = resource(decode=scaled("HPA", minReplicas=3) | {"replicas": 1})
    assert decided(made, Store()).steps["decode"].pods in (None, 3)
    assert decided(made, Store()).wanted["decode"] == 3


def test_a_suspension_takes_all_pods_and_its_end_brings_them_back() -> None:
    suspended = resource(decode=scaled("HPA", minReplicas=2), suspend=True)
    store = populated(suspended)
    assert {step.pods for step in decided(suspended, store).steps.values()} == {0}
    made = resource(decode=scaled("HPA", minReplicas=2))
    with_replicas(store, made, "decode", 0, names.REPLICAS_MANAGER)
    assert decided(made, store).steps["decode"].pods == 2


@pytest.mark.parametrize("owner", [names.FIELD_MANAGER, names.REPLICAS_MANAGER])
def test_what_was_created_suspended_begins_when_that_ends(owner: str) -> None:
    made = resource(decode=scaled("External", minReplicas=2))
    store = with_replicas(populated(made), made, "decode", 0, owner)
    assert decided(made, store).steps["decode"].pods == 2


def test_builtin_follows_the_load() -> None:
    made = resource(decode=scaled("Builtin", scaleUpStabilizationSeconds=0) | {"replicas": 1})
    store = populated(made, *pods_of(made, prefill=1, decode=1))
    busy = WorkerLoad(at=NOW, kv_usage=1.0, running=10.0, queue=0.0, prealloc_queue=0.0,
                      transfer_queue=0.0, output_tokens_s=10.0)  # fmt: skip
    first = decided(made, store, **{"m-decode-0": busy})
    again = decide(made, observe(made, store), {"m-decode-0": busy}, first.thread, NOW + 15)
    assert again.steps["decode"].pods == 2
    assert again.scaling is not None
    assert again.scaling.truth == "True"
    assert again.again_after_s <= 15


def test_builtin_without_metrics_holds_and_says_so() -> None:
    made = resource(decode=scaled("Builtin") | {"replicas": 2})
    store = populated(made, *pods_of(made, prefill=1, decode=2))
    found = decided(made, store)
    assert found.steps["decode"].pods == 2
    assert found.scaling is not None
    assert (found.scaling.truth, found.scaling.reason) == ("Unknown", "MetricsStale")


@pytest.mark.parametrize(("loads", "pods"), [({}, 2), (None, 1)], ids=["silent", "nobody asks"])
def test_a_scale_down_waits_for_metrics_only_where_somebody_asks(loads: Any, pods: int) -> None:
    made = resource(decode={"replicas": 1, "gpus": 0})
    found = pods_of(made, prefill=1, decode=2)
    found[2]["metadata"]["annotations"] |= {names.DRAIN_SINCE: time_at(NOW - 10)}
    seen = observe(made, with_replicas(populated(made, *found), made, "decode", 2))
    assert decide(made, seen, loads, Thread(), NOW).steps["decode"].pods == pods


def test_all_new_and_ready_is_complete() -> None:
    made = resource()
    found = decided(made, populated(made, *pods_of(made, prefill=1, decode=2)))
    assert (found.rollout.truth, found.rollout.reason) == ("True", "RolledOut")
    assert found.stalled is None


def test_a_change_surges_before_it_takes_anything() -> None:
    old = resource()
    store = populated(old, *pods_of(old, prefill=1, decode=2))
    made = resource(engine={"image": "worker:2"})
    found = decided(made, store)
    assert found.rollout.truth == "False"
    assert found.steps == {
        "prefill": RoleStep(partition=1, pods=2),
        "decode": RoleStep(partition=2, pods=3),
    }
    assert found.wanted == {"prefill": 1, "decode": 2}


def test_an_edit_of_one_role_leaves_the_other() -> None:
    old = resource()
    store = populated(old, *pods_of(old, prefill=1, decode=2))
    made = resource(prefill={"gpus": 0, "args": ["--chunked-prefill-size=64"]})
    steps = decided(made, store).steps
    assert steps["decode"] == RoleStep(partition=0, pods=2)
    assert steps["prefill"] == RoleStep(partition=1, pods=2)


def test_several_nodes_are_counted_in_pods() -> None:
    spec = {
        "engine": {"type": "SGLang", "image": "s:1"},
        "prefill": {"gpus": 8, "nodesPerWorker": 2, "replicas": 2},
    }
    old = resource(**spec)
    store = populated(old, *pods_of(old, prefill=4, decode=2))
    made = resource(**spec | {"engine": {"type": "SGLang", "image": "s:2"}})
    assert decided(made, store).steps["prefill"] == RoleStep(partition=4, pods=6)


def test_broken_old_workers_are_replaced_at_once() -> None:
    old = resource()
    crash = waiting("CrashLoopBackOff", restartCount=1)
    broken = pod(old, "prefill", 0, ready=False, status=crash)
    store = populated(old, broken, *pods_of(old, decode=2))
    made = resource(prefill={"gpus": 0, "args": ["--max-queued-requests=9"]})
    with_replicas(store, made, "prefill", 1)
    found = decided(made, store)
    assert found.steps["prefill"].partition == 0
    assert [each.name for each in found.replaced] == ["m-prefill-0"]


def test_a_restarted_operator_goes_on_where_the_status_says() -> None:
    made = resource()
    revision = decided(made, Store()).revision
    condition = {"type": "RolloutComplete", "status": "False",
                 "lastTransitionTime": time_at(NOW - 4000)}  # fmt: skip
    status = {"updateRevision": revision, "conditions": [condition]}
    late = resource(status=status)
    found = decided(late, populated(late, pod(late, "prefill", 0, ready=False)))
    assert found.stalled is not None
    assert found.stalled.reason == "ProgressDeadlineExceeded"


@pytest.mark.parametrize(
    ("rollout", "again_s"),
    [
        ({}, 30),
        ({"progressDeadlineSeconds": 12}, 12),
        ({"minReadySeconds": 7}, 7),
        ({"progressDeadlineSeconds": 12, "minReadySeconds": 20}, 12),
        ({"paused": True}, float("inf")),
    ],
    ids=["nothing happens", "deadline", "ready for long enough", "the first of both", "paused"],
)
def test_a_rollout_is_looked_at_when_time_alone_may_change_it(
    rollout: dict[str, Any], again_s: float
) -> None:
    old = resource()
    store = populated(old, *pods_of(old, prefill=1, decode=2))
    found = decided(resource(engine={"image": "worker:2"}, rollout=rollout), store)
    assert found.again_after_s == again_s


def test_paused_changes_nothing() -> None:
    old = resource()
    store = populated(old, *pods_of(old, prefill=1, decode=2))
    made = resource(engine={"image": "worker:2"}, rollout={"paused": True})
    found = decided(made, store)
    assert found.rollout.reason == "Paused"
    assert found.steps["prefill"] == RoleStep(partition=1, pods=1)

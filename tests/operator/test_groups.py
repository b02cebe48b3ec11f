"""Workers of several nodes restart as a whole."""

from __future__ import annotations

from typing import Any

from pd_operator.groups import Regrouping, Restart, regroup
from pd_operator.observed import observe
from pd_operator.routing import relabels
from tests.operator.builders import NOW, pod, populated, resource, time_at, waiting

MADE = resource(
    engine={"type": "SGLang", "image": "s"}, prefill={"gpus": 8, "nodesPerWorker": 2, "replicas": 2}
)
CRASH = waiting("CrashLoopBackOff", restartCount=1)


def regrouped(*pods: Any, restarts: Any = None, now: float = NOW) -> Regrouping:
    return regroup(MADE, observe(MADE, populated(MADE, *pods)), restarts or {}, now)


def gone(found: Regrouping) -> list[str]:
    return [each.name for each in found.deletes]


def crashed(ordinal: int) -> Any:
    return pod(MADE, "prefill", ordinal, ready=False, status=CRASH)


def test_healthy_workers_are_left_alone() -> None:
    assert gone(regrouped(*(pod(MADE, "prefill", ordinal) for ordinal in range(4)))) == []


def test_a_crash_takes_its_own_worker_only() -> None:
    found = regrouped(*(pod(MADE, "prefill", each) for each in (0, 1, 2)), crashed(3))
    assert gone(found) == ["m-prefill-2", "m-prefill-3"]


def test_pods_that_served_without_the_newest_one_are_replaced() -> None:
    young = pod(MADE, "prefill", 1, ready=False, meta={"creationTimestamp": time_at(NOW - 1)})
    assert gone(regrouped(pod(MADE, "prefill", 0), young)) == ["m-prefill-0"]


def test_pods_that_start_together_are_left_alone() -> None:
    young = pod(MADE, "prefill", 1, ready=False, meta={"creationTimestamp": time_at(NOW - 1)})
    assert gone(regrouped(pod(MADE, "prefill", 0, ready=False), young)) == []


def test_restarts_wait_longer_each_time() -> None:
    pods = (pod(MADE, "prefill", 0), crashed(1))
    first = regrouped(*pods)
    again = regrouped(*pods, restarts=first.restarts, now=NOW + 10)
    assert gone(again) == []
    assert again.again_after_s == 20
    second = regrouped(*pods, restarts=first.restarts, now=NOW + 31)
    assert len(gone(second)) == 2
    assert second.restarts["prefill", 0].pause_s == 60
    assert regrouped(*pods, restarts={("prefill", 0): Restart(at=0.0, count=9)}).restarts[
        "prefill", 0
    ] == Restart(at=NOW)


def test_workers_of_one_node_restart_by_themselves() -> None:
    assert gone(regrouped(pod(MADE, "decode", 0, ready=False, status=CRASH))) == []


def labels(*pods: Any, made: Any = MADE) -> dict[str, bool]:
    observed = observe(made, populated(made, *pods))
    return {each.pod.name: each.routable for each in relabels(made, observed, {}, NOW)}


def test_the_first_pod_of_a_whole_worker_is_routable() -> None:
    routable = pod(MADE, "prefill", 1)
    unlabelled = {"labels": routable["metadata"]["labels"] | {"pdserve.io/routable": "false"}}
    pods = [pod(MADE, "prefill", 0, meta=unlabelled), routable]
    assert labels(*pods) == {"m-prefill-0": True, "m-prefill-1": False}


def test_a_worker_in_part_is_not_routable() -> None:
    pods = [pod(MADE, "prefill", 0), pod(MADE, "prefill", 1, ready=False)]
    assert labels(*pods) == {"m-prefill-0": False, "m-prefill-1": False}


def test_routers_that_look_for_themselves_need_no_labels() -> None:
    made = resource()
    assert labels(pod(made, "prefill", 0, ready=False), made=made) == {}

"""The status: conditions, counts, phase and events, from what is there."""

from __future__ import annotations

from typing import Any

import pytest

from pd_operator.api.status import Status
from pd_operator.conditions import Verdict, monitoring_active, no, scaling_active, yes
from pd_operator.observed import observe
from pd_operator.resource import Manifest, Resource
from pd_operator.status import broken_status, make_status, news, status_manifest
from pd_operator.store import Store
from tests.operator.builders import NOW, deployment, pod, populated, resource, waiting

DONE = yes("RolledOut", "done")
ROLLING = no("Updating", "prefill: 0 updated and ready")


def verdict(rollout: Any = DONE, **more: Any) -> Verdict:
    wanted = {"prefill": 1, "decode": 2}
    base = {"wanted": wanted, "templates": {"prefill": "p", "decode": "d"}, "revision": "r1"}
    return Verdict(**{**base, "rollout": rollout, **more})


def whole(made: Resource) -> Store:
    pods = [pod(made, "prefill", 0), pod(made, "decode", 0), pod(made, "decode", 1)]
    return populated(made, *pods)


def told(made: Resource, store: Store, what: Verdict | None = None, now: float = NOW) -> Status:
    return make_status(made, observe(made, store), what or verdict(), now)


def conditions(status: Status) -> dict[str, str]:
    return {each.type: f"{each.status} {each.reason}" for each in status.conditions}


def stored(status: Status) -> Manifest:
    found: Manifest = status_manifest(resource(), status)["status"]
    return found


def test_everything_there_is_ready() -> None:
    made = resource()
    status = told(made, whole(made))
    assert (status.phase, status.size) == ("Ready", "1P2D/1P2D")
    assert status.url == "http://m.llm.svc:8000"
    assert status.bootstrap_endpoints == ("m-prefill-0.m-prefill.llm.svc:8998",)
    assert conditions(status) == {
        "Ready": "True AllAvailable",
        "PrefillAvailable": "True AllAvailable",
        "DecodeAvailable": "True AllAvailable",
        "RouterAvailable": "True AllAvailable",
        "RolloutComplete": "True RolledOut",
        "BootstrapReachable": "Unknown NotObserved",
        "KVTransferHealthy": "Unknown NotObserved",
    }
    assert {each.observed_generation for each in status.conditions} == {1}


def test_nothing_there_is_pending() -> None:
    made = resource()
    status = told(made, Store(), verdict(ROLLING))
    assert (status.phase, status.size) == ("Pending", "0P0D/1P2D")
    assert conditions(status)["Ready"] == "False NoWorkers"
    assert conditions(status)["Reconciling"] == "True Updating"


def test_a_missing_worker_degrades_without_undoing_ready() -> None:
    made = resource(status=stored(told(resource(), whole(resource()))))
    crash = waiting("CrashLoopBackOff", restartCount=1)
    pods = [
        pod(made, "prefill", 0),
        pod(made, "decode", 0),
        pod(made, "decode", 1, ready=False, status=crash),
    ]
    status = told(made, populated(made, *pods), verdict(ROLLING))
    assert (status.phase, status.size) == ("Degraded", "1P1D/1P2D")
    assert conditions(status)["Ready"] == "True AllAvailable"
    assert conditions(status)["DecodeAvailable"] == "True SomeAvailable"
    assert status.decode is not None
    assert status.decode.reason == "CrashLooping"


def test_a_lost_role_undoes_ready() -> None:
    made = resource(status=stored(told(resource(), whole(resource()))))
    pods = [pod(made, "decode", 0), pod(made, "decode", 1)]
    status = told(made, populated(made, *pods), verdict(ROLLING))
    assert conditions(status)["Ready"] == "False NoWorkers"
    assert status.phase == "Degraded"


def test_ready_waits_for_the_rollout_of_a_new_generation() -> None:
    before = stored(told(resource(), whole(resource())))
    body = deployment() | {"status": before}
    body["metadata"]["generation"] = 2
    made = Resource.parse(body)
    status = told(made, whole(made), verdict(ROLLING))
    assert conditions(status)["Ready"] == "False Updating"
    assert status.phase == "Updating"
    assert (status.current_revision, status.observed_generation) == ("r1", 2)


def test_ready_needs_a_router_that_sees_a_pair() -> None:
    made = resource()
    pods = [pod(made, "prefill", 0), pod(made, "decode", 0), pod(made, "decode", 1)]
    status = told(made, populated(made, *pods, router_ready=False))
    assert conditions(status)["Ready"] == "False RouterSeesNoPair"


@pytest.mark.parametrize(
    ("provider", "kinds", "reason"),
    [
        ("KEDA", {"PodMonitor"}, "KEDAMissing"),
        ("KEDA", {"ScaledObject"}, "ScaledByOthers"),
        ("HPA", set(), "ScaledByOthers"),
    ],
    ids=["no KEDA", "KEDA", "HPA"],
)
def test_a_scaler_that_the_cluster_lacks_is_no_active_one(
    provider: str, kinds: set[str], reason: str
) -> None:
    scaling = {"provider": provider, "maxReplicas": 3, "prometheusAddress": "http://p"}
    made = resource(decode={"autoscaling": scaling})
    found = scaling_active(made, yes("ScaledByOthers", "scaled"), kinds)
    assert found is not None
    assert (found.reason, found.truth) == (reason, str(reason != "KEDAMissing"))


@pytest.mark.parametrize(
    ("asked", "kinds", "expected"),
    [(True, {"ScaledObject"}, "False PodMonitorMissing"),
     (True, {"PodMonitor"}, "True PodMonitorMade"),
     (False, {"ScaledObject"}, None)],
    ids=["no such kind", "made", "not asked for"],
)  # fmt: skip
def test_a_pod_monitor_that_cannot_be_made_is_told(
    asked: bool, kinds: set[str], expected: str | None
) -> None:
    made = resource(monitoring={"podMonitor": asked})
    status = told(made, whole(made), verdict(monitoring=monitoring_active(made, kinds)))
    assert conditions(status).get("MonitoringActive") == expected
    assert (status.phase, conditions(status)["Ready"]) == ("Ready", "True AllAvailable")


def test_without_a_router_there_is_no_url_and_no_condition() -> None:
    made = resource(router={"enabled": False})
    status = told(made, whole(made))
    assert status.url is None
    assert "RouterAvailable" not in conditions(status)
    assert conditions(status)["Ready"] == "True AllAvailable"


def test_suspended() -> None:
    made = resource(suspend=True)
    suspended = verdict(no("Suspended", "s"), wanted={"prefill": 0, "decode": 0})
    status = told(made, populated(made, router_ready=False), suspended)
    assert (status.phase, status.size) == ("Suspended", "0P0D/0P0D")
    assert conditions(status)["Ready"] == "False Suspended"
    assert "Reconciling" not in conditions(status)


def test_stalled_is_present_only_while_it_holds() -> None:
    made = resource()
    stalled = verdict(ROLLING, stalled=yes("NameConflict", "Service m is another's"))
    status = told(made, whole(made), stalled)
    assert status.phase == "Stalled"
    assert conditions(status)["Stalled"] == "True NameConflict"
    assert "Reconciling" not in conditions(status)


@pytest.mark.parametrize(
    ("checked", "reason", "expected"),
    [(True, "", "True PortsActive"), (False, "", "Unknown NotObserved"),
     (False, "x", "False RDMAUnavailable")],
    ids=["active", "not yet", "none"],
)  # fmt: skip
def test_rdma_is_ready_when_every_worker_found_a_port(
    checked: bool, reason: str, expected: str
) -> None:
    made = resource(rdma={"mode": "DevicePlugin", "resourceName": "r"})
    ended = {"terminated": {"exitCode": 0 if checked else 1, "message": reason}}
    check = [{"name": "rdma-check", "state": ended if checked or reason else {}}]
    status = {"initContainerStatuses": check}
    pods = [pod(made, "prefill", 0, ready=checked, status=status if not checked else {})]
    if checked:
        pods[0]["status"] |= status
    assert conditions(told(made, populated(made, *pods)))["RDMAReady"] == expected


def test_transition_times_move_only_with_the_status() -> None:
    before = told(resource(), whole(resource()))
    made = resource(status=stored(before))
    assert told(made, whole(made), now=NOW + 500) == before
    later = told(made, populated(made, pod(made, "prefill", 0)), now=NOW + 500)
    times = {each.type: each.last_transition_time for each in later.conditions}
    old = {each.type: each.last_transition_time for each in before.conditions}
    assert times["PrefillAvailable"] == old["PrefillAvailable"]
    assert times["DecodeAvailable"] != old["DecodeAvailable"]


def test_workers_of_several_nodes_are_counted_whole() -> None:
    made = resource(
        engine={"image": "i", "type": "SGLang"}, prefill={"gpus": 8, "nodesPerWorker": 2}
    )
    pods = [pod(made, "prefill", ordinal, ready=ordinal != 3) for ordinal in range(4)]
    status = told(made, populated(made, *pods), verdict(wanted={"prefill": 2, "decode": 2}))
    assert status.prefill is not None
    assert (status.prefill.ready, status.prefill.replicas) == (1, 2)
    assert len(status.bootstrap_endpoints) == 2


def test_events_tell_changes_once() -> None:
    made = resource()
    first = told(made, whole(made))
    assert [(n.type, n.reason) for n in news(made, first)] == [
        ("Normal", "AllAvailable"),
        ("Normal", "RolledOut"),
    ]
    again = resource(status=stored(first))
    assert news(again, told(again, whole(again))) == []


def test_events_of_trouble_are_warnings() -> None:
    made = resource(status=stored(told(resource(), whole(resource()))))
    stalled = verdict(ROLLING, stalled=yes("NameConflict", "Service m is another's"))
    found = {each.reason: each.type for each in news(made, told(made, populated(made), stalled))}
    assert found == {"NameConflict": "Warning", "Updating": "Normal", "NoWorkers": "Warning"}


def test_a_first_start_is_told_calmly_whatever_is_ready_first() -> None:
    made, types = resource(), []
    parts = [pod(made, "prefill", 0), pod(made, "decode", 0), pod(made, "decode", 1)]
    for pods, rollout, router in (([], ROLLING, False), (parts, ROLLING, False),
                                  (parts, DONE, False), (parts, DONE, True)):  # fmt: skip
        status = told(made, populated(made, *pods, router_ready=router), verdict(rollout))
        types += [(each.type, each.reason) for each in news(made, status)]
        made = resource(status=stored(status))
    assert ("Normal", "RouterSeesNoPair") in types
    assert "Warning" not in dict(types)


def test_pairs_that_never_fit_are_trouble_after_the_deadline() -> None:
    made, found = resource(rollout={"progressDeadlineSeconds": 100}), []
    pods = [pod(made, "prefill", 0), pod(made, "decode", 0), pod(made, "decode", 1)]
    times = (NOW, NOW + 90, NOW + 189, NOW + 190, NOW + 300)
    for now, there in zip(times, ([], pods, pods, pods, pods), strict=True):
        what = verdict(DONE if there else ROLLING)
        status = told(made, populated(made, *there, router_ready=False), what, now)
        told_now = [(each.type, each.reason) for each in news(made, status)]
        found += [(now - NOW, *each) for each in told_now if each[1] != "RolledOut"]
        made = resource(status=stored(status), rollout={"progressDeadlineSeconds": 100})
    assert found == [(90, "Normal", "RouterSeesNoPair"), (190, "Warning", "NoPairFits")]
    assert conditions(status)["Ready"] == "False NoPairFits"


def test_a_router_that_loses_its_pair_later_is_trouble() -> None:
    made = resource(status=stored(told(resource(), whole(resource()))))
    parts = [pod(made, "prefill", 0), pod(made, "decode", 0), pod(made, "decode", 1)]
    found = news(made, told(made, populated(made, *parts, router_ready=False)))
    assert [(each.type, each.reason) for each in found] == [("Warning", "RouterSeesNoPair")]


def test_a_spec_that_is_not_understood_keeps_what_was_known() -> None:
    body = deployment() | {"status": stored(told(resource(), whole(resource())))}
    status = broken_status(body, "Expected `int`", NOW)["status"]
    assert (status["phase"], status["size"]) == ("Stalled", "1P2D/1P2D")
    told_anew = {"phase", "conditions", "observedGeneration"}
    kept = {name: value for name, value in body["status"].items() if name not in told_anew}
    assert kept.keys() > {"currentRevision", "updateRevision", "prefill", "decode", "router"}
    assert {name: status[name] for name in kept} == kept
    assert [c["type"] for c in status["conditions"] if c["status"] == "True"] == ["Stalled"]

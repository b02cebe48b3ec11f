"""Why a pod is not ready, in one word and one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from pd_operator import names
from pd_operator.kinds import POD
from pd_operator.observed import dominant, observe, pod_facts
from tests.operator.builders import deployment, pod, populated, resource, waiting

MADE = resource()


def ended(code: int, reason: str = "Error", message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def crashed(code: int, reason: str = "Error", message: str = "", **more: Any) -> dict[str, Any]:
    return waiting(
        "CrashLoopBackOff", restartCount=2, lastState=ended(code, reason, message), **more
    )


def check(state: dict[str, Any]) -> dict[str, Any]:
    return {"initContainerStatuses": [{"name": "rdma-check", "restartCount": 1} | state]}


UNSCHEDULABLE = {
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no gpu"}
    ]
}


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (UNSCHEDULABLE, "InsufficientCapacity", "no gpu"),
        (waiting("ImagePullBackOff", message="not found"), "ImagePullFailed", "not found"),
        (waiting("ErrImageNeverPull"), "ImagePullFailed", ""),
        (waiting("CreateContainerConfigError", message="gone"), "ContainerConfigError", "gone"),
        (waiting("ContainerCreating"), "", ""),
        (crashed(1, message="first\nlast"), "CrashLooping", "exit code 1 (Error): last"),
        (crashed(137, "OOMKilled"), "CrashLooping", "exit code 137 (OOMKilled)"),
        (crashed(137), "StartupTimeout", "exit code 137 (Error)"),
        (crashed(137, started=True), "CrashLooping", "exit code 137 (Error)"),
        (check({"state": ended(1, message="no RDMA port is ACTIVE\n")}), "RDMAUnavailable",
         "no RDMA port is ACTIVE"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk"}, "PodFailed", "disk"),
        ({}, "", ""),
    ],
    ids=["no node", "pull", "never pull", "config", "creating", "crash", "oom", "startup",
         "after startup", "rdma", "evicted", "starting"],
)  # fmt: skip
def test_reason_of_a_pod_that_is_not_ready(
    status: dict[str, Any], reason: str, message: str
) -> None:
    facts = pod_facts(pod(MADE, "prefill", 0, ready=False, status=status))
    assert (facts.reason, facts.message) == (reason, message)


def test_a_running_container_that_crashed_before_is_still_crash_looping() -> None:
    status = waiting("")
    status["containerStatuses"][0] |= {"restartCount": 3, "state": {"running": {}}, "started": True}
    assert pod_facts(pod(MADE, "prefill", 0, ready=False, status=status)).reason == "CrashLooping"


def test_a_ready_pod_has_no_reason() -> None:
    status = waiting("")
    status["containerStatuses"][0] |= {"restartCount": 3, "ready": True}
    made = pod(MADE, "prefill", 0)
    made["status"] |= status
    assert pod_facts(made).reason == ""


def test_the_reason_of_most_pods_is_told() -> None:
    pods = [
        pod_facts(pod(MADE, "decode", ordinal, ready=False, status=status))
        for ordinal, status in enumerate([crashed(1), UNSCHEDULABLE, UNSCHEDULABLE, {}])
    ]
    assert dominant(pods) == ("InsufficientCapacity", "no gpu")
    assert dominant([]) == ("", "")


def test_observes_its_own_workloads_and_pods_only() -> None:
    store = populated(MADE, pod(MADE, "decode", 1), pod(MADE, "decode", 0))
    stranger = pod(MADE, "decode", 7, meta={"ownerReferences": []})
    store.put(POD, stranger)
    observed = observe(MADE, store)
    assert [each.name for each in observed.pods["decode"]] == ["m-decode-0", "m-decode-1"]
    assert observed.workloads["prefill"] is not None
    successor = resource()
    body = deployment()
    body["metadata"]["uid"] = "another"
    successor = type(successor).parse(body)
    assert observe(successor, store).workloads["prefill"] is None


def test_facts_of_a_pod() -> None:
    made = pod(MADE, "prefill", 3, meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    facts = pod_facts(made)
    assert (facts.ordinal, facts.ready, facts.terminating, facts.routable) == (3, True, True, True)
    assert facts.template_hash == made["metadata"]["annotations"][names.TEMPLATE_HASH]


@pytest.mark.parametrize("role", names.ROLES)
def test_a_pod_of_an_earlier_set_of_the_same_name_is_none_of_ours(role: names.Role) -> None:
    left = pod(MADE, role, 0)
    left["metadata"]["ownerReferences"][0]["uid"] = "uid-of-the-earlier-set"
    assert observe(MADE, populated(MADE, left)).pods[role] == ()
    assert len(observe(MADE, populated(MADE, pod(MADE, role, 0))).pods[role]) == 1

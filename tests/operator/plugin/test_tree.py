"""`status` and `doctor`: what is told about a deployment from its objects."""

from __future__ import annotations

from typing import Any

import pytest

from pd_operator.crd import definition
from pd_operator.desired import Choices, desired_state
from pd_operator.observed import observe, timestamp
from pd_operator.plugin import doctor
from pd_operator.plugin.facts import Facts
from pd_operator.plugin.fit import nodes_of
from pd_operator.plugin.forecast import parts
from pd_operator.plugin.tree import overview, tree
from tests.operator.builders import NOW, deployment, pod, populated, resource, waiting
from tests.operator.plugin.test_forecast import node

STATUS = {
    "observedGeneration": 1,
    "phase": "Ready",
    "size": "1P2D/1P2D",
    "url": "http://m.llm.svc:8000",
    "prefill": {"desired": 1},
    "decode": {"desired": 2},
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "AllAvailable", "message": "serving"},
        {"type": "RDMAReady", "status": "Unknown", "reason": "NotObserved", "message": "-"},
    ],
}


def facts(*pods: dict[str, Any], status: dict[str, Any] | None = None, **spec: Any) -> Facts:
    made = resource(STATUS if status is None else status, **spec)
    return Facts(resource=made, observed=observe(made, populated(made, *pods)), pods=pods)


def healthy() -> list[dict[str, Any]]:
    made = resource()
    found = [pod(made, "prefill", 0), pod(made, "decode", 0), pod(made, "decode", 1)]
    for each in found:
        each["spec"] = {"nodeName": "node-a"}
    return found


def trouble(name: str, truth: str) -> dict[str, Any]:
    bad = {"type": name, "status": truth, "reason": "Because", "message": "of this"}
    return STATUS | {"conditions": [bad]}


def test_healthy_deployment_is_a_plain_tree():
    assert list(tree(facts(*healthy()))) == [
        "m  Ready  1P2D/1P2D  http://m.llm.svc:8000",
        "├─ prefill  1/1 ready  StatefulSet m-prefill",
        "│   m-prefill-0  ready  node-a  10.0.0.1",
        "├─ decode  2/2 ready  StatefulSet m-decode",
        "│   m-decode-0  ready  node-a  10.0.0.1",
        "│   m-decode-1  ready  node-a  10.0.0.1",
        "└─ router  1/1 ready  Deployment m-router",
        "    no pods",
    ]


def test_reason_of_a_pod_is_shown():
    made = resource()
    bad = pod(made, "prefill", 0, ready=False, status=waiting("ErrImagePull", message="no such"))
    assert any("m-prefill-0  ImagePullFailed: no such" in line for line in tree(facts(bad)))


@pytest.mark.parametrize(
    ("meta", "word"),
    [
        ({"deletionTimestamp": timestamp(NOW)}, "ending"),
        ({"annotations": {"pdserve.io/drain-since": timestamp(NOW)}}, "draining"),
        ({"annotations": {"pdserve.io/template-hash": "before"}}, "old revision"),
    ],
)
def test_pods_on_their_way_out_are_told(meta, word):
    assert any(word in line for line in tree(facts(pod(resource(), "decode", 1, meta=meta))))


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (trouble("Ready", "False"), "Ready is False: Because: of this"),
        (trouble("Stalled", "True"), "Stalled is True: Because: of this"),
        (STATUS | {"observedGeneration": 0}, "not seen the latest change"),
        ({}, "is the operator running?"),
    ],
    ids=["not ready", "stalled", "behind", "no status"],
)
def test_troubles_come_first(status, told):
    assert told in list(tree(facts(*healthy(), status=status)))[1]


def test_overview_has_a_line_each():
    text = overview([deployment() | {"status": STATUS}, deployment()])
    assert text.splitlines()[1:] == [
        "llm        m     Ready  1P2D/1P2D  http://m.llm.svc:8000",
        "llm        m     -      -          -",
    ]


def levels(findings: Any) -> list[str]:
    return [each.level for each in findings]


def test_doctor_finds_nothing_where_all_is_well():
    assert levels(doctor.deployment(facts(*healthy()))) == ["fine"]


def test_doctor_names_the_pod_and_a_remedy():
    made = resource()
    bad = pod(made, "prefill", 0, ready=False, status=waiting("ErrImagePull", message="no such"))
    *_, found = doctor.deployment(facts(bad))
    assert str(found).splitlines() == [
        "✗ m-prefill-0: ImagePullFailed: no such",
        "    → check engine.image, and imagePullSecrets for a private registry",
    ]


@pytest.mark.parametrize(
    ("renewed", "level"), [(NOW - 5, "fine"), (NOW - 300, "broken"), (None, "broken")]
)
def test_doctor_judges_the_operator_by_its_lease(renewed, level):
    spec = {"renewTime": timestamp(renewed), "holderIdentity": "x"} if renewed else {}
    given_back = {"spec": {"renewTime": timestamp(NOW), "holderIdentity": ""}}
    assert doctor.operator([given_back, {"spec": spec}], NOW).level == level


def test_doctor_does_not_blame_an_operator_that_it_may_not_see():
    assert doctor.operator(None, NOW).level == "doubt"
    assert doctor.operator([], NOW).level == "broken"


def test_doctor_compares_the_crd():
    live = definition()
    assert doctor.crd(live).level == "fine"
    assert doctor.crd(None).level == "broken"
    del live["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"][
        "properties"
    ]["engine"]
    assert doctor.crd(live).level == "doubt"


def test_doctor_misses_devices():
    made = resource(prefill={"gpus": 1}, decode={"gpus": 0})
    found = parts(made, desired_state(made, Choices()))
    bare = node("a")
    del bare["status"]["allocatable"]["nvidia.com/gpu"]
    assert levels(doctor.nodes(found, nodes_of([node("a")], []))) == ["fine"]
    assert levels(doctor.nodes(found, nodes_of([bare], []))) == ["broken"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [(("k", "k"), ["fine"]), (("k", "other"), ["broken"])],
    ids=["pair", "no pair"],
)
def test_doctor_asks_the_router_for_pairs(keys, expected):
    workers = [
        {"role": role, "state": "healthy", "pairing_key": key, "url": "u"}
        for role, key in zip(("prefill", "decode"), keys, strict=True)
    ]
    assert levels(doctor.router(workers)) == expected


def test_doctor_tells_why_a_worker_is_not_used():
    found = list(doctor.router([{"role": "decode", "state": "refused", "url": "u", "reason": "r"}]))
    assert str(found[-1]) == "! the router does not use u: refused: r"
    assert levels(doctor.router(None)) == ["doubt"]

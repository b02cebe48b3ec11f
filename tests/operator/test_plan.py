"""The writes that are due: none when all is well, each only where something differs."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from pd_operator import names
from pd_operator.decisions import Thread, decide
from pd_operator.errors import ForeignObject
from pd_operator.kinds import ALWAYS, DEPLOYMENT, STATEFUL_SET
from pd_operator.observed import is_leftover, observe
from pd_operator.plan import Plan, Scale, Settled, Surroundings, make_plan, replicas_manifest
from pd_operator.resource import Resource
from pd_operator.store import Store
from tests.operator.builders import NOW, live, pod, populated, resource

SERVICES = ALWAYS[2]


def whole(made: Resource) -> Store:
    pods = [pod(made, "prefill", 0), pod(made, "decode", 0), pod(made, "decode", 1)]
    return populated(made, *pods)


def planned(made: Resource, store: Store, settled: Settled | None = None) -> Plan:
    observed = observe(made, store)
    decisions = decide(made, observed, {}, Thread(), NOW)
    return make_plan(made, decisions, observed, store, Surroundings(), settled or {})


def writes(plan: Plan) -> Plan:
    return replace(plan, settled={})


def kinds(plan: Plan) -> list[str]:
    return [f"{m['kind']} {m['metadata']['name']}" for m in plan.applies]


def test_nothing_is_due_where_all_is_as_wanted() -> None:
    made = resource()
    assert writes(planned(made, whole(made))) == Plan()


def test_everything_is_due_where_nothing_is_there() -> None:
    made = resource()
    plan = planned(made, Store())
    assert kinds(plan)[0] == "ServiceAccount m-worker"
    sets = {m["metadata"]["name"]: m["spec"] for m in plan.applies if m["kind"] == "StatefulSet"}
    assert {name: spec["replicas"] for name, spec in sets.items()} == {
        "m-prefill": 1,
        "m-decode": 2,
    }
    assert (plan.scales, plan.deletes) == ((), ())


def test_what_exists_is_applied_without_replicas() -> None:
    made = resource(engine={"image": "worker:2"})
    plan = planned(made, whole(resource()))
    assert kinds(plan) == [
        "StatefulSet m-prefill", "StatefulSet m-decode", "Deployment m-router",
    ]  # fmt: skip
    assert ["replicas" in m["spec"] for m in plan.applies] == [False, False, True]


def test_drift_is_applied_away() -> None:
    made, store = resource(), whole(resource())
    found = copy.deepcopy(store.of(made.key, SERVICES)["m-prefill"])
    found["spec"]["publishNotReadyAddresses"] = False
    found["metadata"]["resourceVersion"] = "2"
    store.put(SERVICES, found)
    assert kinds(planned(made, store)) == ["Service m-prefill"]


def test_a_field_that_the_api_server_does_not_keep_is_applied_once() -> None:
    made, store = resource(), whole(resource())
    found = copy.deepcopy(store.of(made.key, SERVICES)["m-prefill"])
    del found["spec"]["publishNotReadyAddresses"]
    found["metadata"]["resourceVersion"] = "2"
    store.put(SERVICES, found)
    mark = found["metadata"]["annotations"][names.APPLIED_HASH]
    assert writes(planned(made, store, {("Service", "m-prefill"): (mark, "2")})) == Plan()


def test_replicas_are_written_apart() -> None:
    made = resource(decode={"gpus": 0, "replicas": 3})
    plan = planned(made, whole(resource()))
    assert plan.applies == ()
    assert plan.scales == (Scale(role="decode", pods=3),)
    assert replicas_manifest(made, plan.scales[0])["spec"] == {"replicas": 3}


def test_replicas_get_a_second_owner_before_the_first_lets_go() -> None:
    made = resource(engine={"image": "worker:2"})
    store = whole(resource())
    found = copy.deepcopy(store.of(made.key, STATEFUL_SET)["m-decode"])
    owner = {
        "manager": names.FIELD_MANAGER,
        "operation": "Apply",
        "fieldsV1": {"f:spec": {"f:replicas": {}}},
    }
    found["metadata"] |= {"resourceVersion": "5", "managedFields": [owner]}
    store.put(STATEFUL_SET, found)
    [claim] = planned(made, store).claims
    assert claim == Scale(role="decode", pods=2, version="5")
    assert replicas_manifest(made, claim)["metadata"]["resourceVersion"] == "5"


def test_what_is_wanted_no_more_is_deleted() -> None:
    made = resource(router={"enabled": False})
    plan = planned(made, whole(resource()))
    gone = {f"{kind.name} {m['metadata']['name']}" for kind, m in plan.deletes}
    assert gone == {
        "ServiceAccount m-router", "Role m-router", "RoleBinding m-router",
        "Service m", "Deployment m-router",
    }  # fmt: skip


@pytest.mark.parametrize(
    "owner",
    [None, {"kind": "Other", "name": "m", "uid": "x", "controller": True}],
    ids=["nobody's", "another's"],
)
def test_foreign_objects_are_refused_and_never_deleted(owner: dict[str, Any] | None) -> None:
    made, store = resource(), whole(resource())
    found = copy.deepcopy(store.of(made.key, DEPLOYMENT)["m-router"])
    found["metadata"] |= {"ownerReferences": [owner] if owner else [], "resourceVersion": "5"}
    store.put(DEPLOYMENT, found)
    with pytest.raises(ForeignObject, match="Deployment m-router"):
        planned(made, store)
    without = resource(router={"enabled": False})
    assert not [m for kind, m in planned(without, store).deletes if kind == DEPLOYMENT]


@pytest.mark.parametrize(
    ("uid", "name", "leftover"),
    [("uid-2", "m", True), ("uid-2", "other", False), (resource().uid, "m", False)],
    ids=["of an earlier one", "of another one", "our own"],
)
def test_what_an_earlier_deployment_of_this_name_left(uid: str, name: str, leftover: bool) -> None:
    made = resource()
    owner = made.owner | {"uid": uid, "name": name}
    assert is_leftover(made, {"metadata": {"ownerReferences": [owner]}}) is leftover


def test_objects_of_a_deleted_deployment_of_this_name_are_waited_for() -> None:
    old = resource()
    store = whole(old)
    body = {"metadata": {"name": "m", "namespace": "llm", "uid": "uid-2", "generation": 1}}
    made = Resource.parse(
        body | {"spec": {"model": {"source": "hf://a/b"}, "engine": {"image": "i"}}}
    )
    plan = planned(made, store)
    assert "StatefulSet m-prefill" in plan.leftovers
    assert "PodDisruptionBudget m-prefill" in plan.leftovers
    assert plan.deletes == ()


def test_objects_that_are_being_deleted_are_left_to_go() -> None:
    made, store = resource(), whole(resource())
    found = live(copy.deepcopy(store.of(made.key, SERVICES)["m"]), version=8)
    found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found["spec"] = {}
    store.put(SERVICES, found)
    assert writes(planned(made, store)) == Plan()


def test_what_was_found_good_is_not_compared_again() -> None:
    made = resource()
    store = whole(made)
    good = planned(made, store).settled
    assert len(good) == len(list(store.children(made.key)))
    assert all(version == "1" for _, version in good.values())

"""The store: whose objects are whose, which version wins, what is kept."""

from __future__ import annotations

from typing import Any

import pytest

from pd_operator import names
from pd_operator import store as store_module
from pd_operator.kinds import ALWAYS, PDDEPLOYMENT, POD, STATEFUL_SET
from pd_operator.resource import Key
from pd_operator.store import Store, owner_key, packed, trimmed
from tests.operator.builders import deployment, pod, resource

SERVICES = ALWAYS[2]
KEY = Key("llm", "m")


def service(name: str, version: int = 1, uid: str = "u", **meta: Any) -> dict[str, Any]:
    labels = {names.DEPLOYMENT: "m"}
    base = {"name": name, "namespace": "llm", "uid": uid, "resourceVersion": str(version)}
    return {"kind": "Service", "metadata": base | {"labels": labels} | meta}


OWNER = {"kind": "PDDeployment", "name": "m", "uid": "x", "controller": True}


@pytest.mark.parametrize(
    ("meta", "key"),
    [
        ({}, KEY),
        ({"labels": {}}, None),
        ({"labels": {}, "ownerReferences": [OWNER]}, KEY),
        ({"labels": {names.DEPLOYMENT: "forged"}, "ownerReferences": [OWNER]}, KEY),
        ({"ownerReferences": [OWNER | {"kind": "Other", "name": "o"}]}, KEY),
    ],
    ids=["label", "nothing", "owner", "owner wins", "another owner"],
)
def test_objects_belong_by_owner_or_label(meta: dict[str, Any], key: Key | None) -> None:
    assert owner_key(service("s", **meta)) == key


def test_a_deployment_is_its_own() -> None:
    store = Store()
    assert store.put(PDDEPLOYMENT, deployment()) == KEY
    assert store.deployment(KEY) is not None


@pytest.mark.parametrize(
    ("version", "uid", "kept"), [(4, "u", "5"), (6, "u", "6"), (2, "other", "2")],
    ids=["older", "newer", "another incarnation"],
)  # fmt: skip
def test_the_newest_version_of_an_incarnation_is_kept(version: int, uid: str, kept: str) -> None:
    store = Store()
    store.put(SERVICES, service("s", 5))
    store.put(SERVICES, service("s", version, uid))
    assert store.of(KEY, SERVICES)["s"]["metadata"]["resourceVersion"] == kept


def test_a_late_deletion_leaves_the_successor() -> None:
    store = Store()
    store.put(SERVICES, service("s", 9, "new"))
    store.drop(SERVICES, service("s", 8, "old"))
    assert "s" in store.of(KEY, SERVICES)


def test_a_list_replaces_what_is_known_in_its_namespace_only() -> None:
    store = Store()
    store.put(SERVICES, service("a"))
    store.put(SERVICES, service("b", namespace="other"))
    assert store.replace(SERVICES, [packed(SERVICES, service("c", uid="c"))], "llm", "9") == {KEY}
    assert set(store.of(KEY, SERVICES)) == {"c"}
    assert set(store.of(Key("other", "m"), SERVICES)) == {"b"}


def test_what_is_newer_than_a_list_stays() -> None:
    store = Store()
    store.put(SERVICES, service("a", 12, "a"))
    store.put(SERVICES, service("b", 9, "b"))
    store.replace(SERVICES, [], "llm", "10")
    assert set(store.of(KEY, SERVICES)) == {"a"}


@pytest.mark.parametrize("told", ["event", "list"])
def test_a_late_answer_does_not_bring_back_what_is_gone(told: str) -> None:
    store = Store()
    store.put(SERVICES, service("s", 5))
    if told == "event":
        store.drop(SERVICES, service("s", 7))
    else:
        store.replace(SERVICES, [], "llm", "7")
    store.put(SERVICES, service("s", 6))
    assert store.keys() == []
    store.put(SERVICES, service("s", 8))  # it had only left the selector, and has come back
    assert set(store.of(KEY, SERVICES)) == {"s"}


def test_gone_before_it_was_known_it_stays_unknown() -> None:
    store = Store()
    store.drop(SERVICES, service("s", 7))
    store.put(SERVICES, service("s", 6))
    assert store.keys() == []


def test_how_many_are_known_to_be_gone_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "LATE", 2)
    store = Store()
    for uid in ("a", "b", "c"):
        store.drop(SERVICES, service(uid, 7, uid))
    for uid in ("a", "b", "c"):
        store.put(SERVICES, service(uid, 6, uid))
    assert set(store.of(KEY, SERVICES)) == {"a"}


def test_who_got_an_object_has_it_for_himself() -> None:
    store = Store()
    store.put(SERVICES, service("s"))
    store.of(KEY, SERVICES)["s"]["metadata"]["labels"].clear()
    assert store.of(KEY, SERVICES)["s"]["metadata"]["labels"] == {names.DEPLOYMENT: "m"}


def test_nothing_stays_of_a_deployment_that_is_gone() -> None:
    store = Store()
    store.put(SERVICES, service("a"))
    store.drop(SERVICES, service("a"))
    assert store.keys() == []


def test_of_managed_fields_only_the_owners_of_replicas_are_kept() -> None:
    managers = [
        {"manager": "hpa", "operation": "Update", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        {"manager": "us", "operation": "Apply", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
        {"manager": "we", "operation": "Apply", "fieldsV1": {"f:spec": {"f:template": {}}}},
    ]
    slim = trimmed(STATEFUL_SET, service("s", managedFields=managers))
    assert slim["replicasOwners"] == ["us"]
    assert "managedFields" not in slim["metadata"]


def test_of_pods_the_spec_is_dropped() -> None:
    made = pod(resource(), "prefill", 0)
    made["spec"] = {"nodeName": "n", "containers": [1, 2, 3]}
    assert trimmed(POD, made)["spec"] == {"nodeName": "n"}

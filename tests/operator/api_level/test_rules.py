"""The CRD as the API server understands it: what it refuses and why, and what it fills in."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from pd_operator.api.markers import to_manifest
from pd_operator.api.model import Engine
from pd_operator.api.role import Role
from pd_operator.crd import NAME_RULE, definition
from pd_operator.errors import Refused
from pd_operator.kinds import PDDEPLOYMENT
from pd_operator.resource import Manifest, Resource
from tests.cluster.client import Client
from tests.operator.api_level.rules import ACCEPTED, RULES, SCHEMA_REFUSED, SGLANG
from tests.operator.api_level.space import Space

pytestmark = pytest.mark.cluster

ALL_ACCEPTED = {name: case.accepted for name, case in RULES.items()} | ACCEPTED
OF_THEIR_OWN = {NAME_RULE["message"], Engine.rules[0].message, Role.rules[0].message}
"""Rules with tests of their own."""


@pytest.fixture
def namespace() -> str:
    """Nothing but the one deployment of a test is stored here."""
    return "default"


async def tried(space: Space, body: Manifest) -> Manifest:
    """As the API server would store it."""
    path = PDDEPLOYMENT.path(space.namespace) + "?dryRun=All"
    return await space.cluster.create(Kindless(path), body)  # type: ignore[arg-type]


class Kindless:
    """A kind whose URL is given."""

    def __init__(self, path: str) -> None:
        self._path = path

    def path(self, *_: str) -> str:
        return self._path


@pytest.mark.parametrize("message", RULES)
async def test_nonsense_is_refused_with_a_reason(space: Space, message: str) -> None:
    with pytest.raises(Refused) as refusal:
        await tried(space, space.body(**RULES[message].refused))
    assert message in str(refusal.value)


@pytest.mark.parametrize("field", SCHEMA_REFUSED)
async def test_wrong_values_are_refused_by_field(space: Space, field: str) -> None:
    with pytest.raises(Refused, match=field.replace(".", r"\.")):
        await tried(space, space.body(**SCHEMA_REFUSED[field]))


@pytest.mark.parametrize("case", ALL_ACCEPTED)
async def test_sense_is_accepted(space: Space, case: str) -> None:
    await tried(space, space.body(**ALL_ACCEPTED[case]))


@pytest.mark.parametrize("name", ["a", "a" * 38, "a-1"])
async def test_names_that_fit_are_accepted(space: Space, name: str) -> None:
    await tried(space, space.body(name))


@pytest.mark.parametrize("name", ["a" * 39, "1a", "a.b"], ids=["long", "digit", "dot"])
async def test_names_of_which_no_child_can_be_named_are_refused(space: Space, name: str) -> None:
    with pytest.raises(Refused, match="at most 38"):
        await tried(space, space.body(name))


async def test_the_engine_cannot_change(space: Space) -> None:
    await space.create("fixed")
    with pytest.raises(Refused, match=r"engine\.type cannot change"):
        await space.edit("fixed", engine={"type": "SGLang"}, decode={"gpus": 0})
    await space.delete("fixed")


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (2, None), (None, 2)])
async def test_the_nodes_of_a_worker_cannot_change(
    space: Space, role: str, before: int | None, after: int | None
) -> None:
    first = {} if before is None else {"nodesPerWorker": before}
    await space.create("fixed", **SGLANG, **{role: {"gpus": 8, **first}})
    with pytest.raises(Refused, match="nodesPerWorker cannot change"):
        await space.edit("fixed", **{role: {"nodesPerWorker": after}})
    edited = await space.edit("fixed", **{role: {"nodesPerWorker": before, "replicas": 4}})
    assert edited["spec"][role]["nodesPerWorker"] == (before or 1)
    await space.delete("fixed")


def messages(schema: Any) -> Iterator[str]:
    """Those of all rules in a schema."""
    if isinstance(schema, dict):
        yield from (rule["message"] for rule in schema.get("x-kubernetes-validations", []))
        for inner in schema.values():
            yield from messages(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from messages(inner)


def test_every_rule_has_a_case_and_every_case_a_rule() -> None:
    rules = set(messages(definition()))
    assert len(rules) > 30
    assert rules > OF_THEIR_OWN
    uncovered = {rule for rule in rules - OF_THEIR_OWN if not any(case in rule for case in RULES)}
    assert uncovered == set()
    assert {case for case in RULES if not any(case in rule for rule in rules)} == set()


@pytest.mark.parametrize("case", ALL_ACCEPTED)
async def test_defaults_are_those_of_the_classes(space: Space, case: str) -> None:
    body = space.body(**ALL_ACCEPTED[case])
    stored = await tried(space, copy.deepcopy(body))
    assert to_manifest(stored["spec"]) == to_manifest(Resource.parse(body).spec)
    assert stored["spec"]["rdma"]["required"] is True


async def test_every_field_is_explained(space: Space, api: Client) -> None:
    text = api.kubectl("explain", "pddeployments", "--recursive")
    assert "nodesPerWorker" in text
    lines = api.kubectl("explain", "pddeployments.spec.decode.autoscaling.provider")
    assert "this operator, from the workers' own metrics" in lines


async def test_listed_by_short_name_with_its_columns(space: Space, api: Client) -> None:
    await space.create("listed")
    table = api.kubectl("get", "pdd", "-n", space.namespace)
    assert table.split("\n")[0].split() == ["NAME", "READY", "PHASE", "ROLLOUT", "AGE", "URL"]
    assert "listed" in api.kubectl("get", "inference", "-n", space.namespace)
    await space.delete("listed")

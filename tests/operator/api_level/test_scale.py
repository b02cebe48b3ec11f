"""Many deployments at once: what each costs, by the API server's own audit log.

The steps are those of benchmarks/operator_scale.py, with the operator as a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.contenders import Operator
from benchmarks.creation import Creation, create
from benchmarks.restart import restart
from benchmarks.stand import Stand, kinds_of, stand

from tests.cluster.client import until
from tests.cluster.fixtures import programs

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

NUMBERS = range(60)
CHILDREN = {
    "services": 3, "serviceaccounts": 2, "statefulsets": 2, "poddisruptionbudgets": 2, "roles": 1,
    "rolebindings": 1, "deployments": 1,
}  # fmt: skip


@pytest.fixture(scope="module")
def place() -> Iterator[Stand]:
    programs("kube", "helm")
    with stand(calm_s=2.0) as place:
        yield place


@pytest.fixture(scope="module")
def operator(place: Stand) -> Operator:
    operator = Operator(place.plane, place.client)
    operator.resync_s = 4.0
    operator.prepare()
    operator.start()
    return operator


@pytest.fixture(scope="module")
def made(place: Stand, operator: Operator) -> Creation:
    return create(place, operator, NUMBERS)


def test_each_child_is_written_once(made: Creation) -> None:
    writes = {kind: made.writes[f"patch {kind}"] for kind in CHILDREN}
    assert writes == {kind: number * len(NUMBERS) for kind, number in CHILDREN.items()}
    assert made.writes["create secrets"] == made.writes["create controllerrevisions"] == 60


def test_a_deployment_costs_few_requests(made: Creation) -> None:
    assert sum(made.writes.values()) <= 20 * len(NUMBERS)
    assert sum(made.reads.values()) <= 15 * len(NUMBERS)


def test_the_operator_counts_its_own_writes_right(
    place: Stand, operator: Operator, made: Creation
) -> None:
    assert made.own_count == sum(made.writes.values())
    complete = create(place, operator, range(60, 65), pods=False)  # at once, which is an event
    assert complete.writes["create events"] > 0
    assert complete.own_count == sum(complete.writes.values())


@pytest.mark.usefixtures("made")
def test_looking_again_writes_nothing(place: Stand, operator: Operator) -> None:
    place.audit.read()
    before, looks = len(place.audit.requests), operator.looks
    until("all looked at", lambda: operator.looks >= looks + 2 * len(NUMBERS))
    place.audit.read()
    later = place.audit.requests[before:]
    assert kinds_of([each for each in later if each.is_write]) == {}


@pytest.mark.usefixtures("made")
def test_a_restart_writes_for_the_deployment_that_was_edited(
    place: Stand, operator: Operator
) -> None:
    again = restart(place, operator, NUMBERS)
    assert again.writes_others == {}
    assert set(again.writes_changed) == {"patch services", "patch pddeployments/status"}

"""The second look at what kopf tells, and the operator's own health."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from pd_operator import health as health_module
from pd_operator import resync as resync_module
from pd_operator.cluster import Cluster
from pd_operator.health import Health
from pd_operator.kinds import ALWAYS
from pd_operator.reflector import Reflector, Scope
from pd_operator.resource import Key
from pd_operator.resync import Resync
from pd_operator.store import Store
from tests.operator.builders import deployment
from tests.operator.client.conftest import Script, page

KEY = Key("llm", "m")


def body(version: int) -> dict[str, Any]:
    made = deployment()
    made["metadata"]["resourceVersion"] = str(version)
    return made


class Desk:
    """A Resync with what it asks to be looked at."""

    def __init__(self, cluster: Cluster) -> None:
        self.looks: list[Key] = []
        self.store = Store()
        self.resync = Resync(cluster, self.store, self._look, (), 10.0)

    def _look(self, key: Key, after_s: float) -> None:
        self.looks.append(key)


@pytest.fixture
async def desk(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setattr(resync_module, "PATIENCE_S", 0.01)
    return Desk(cluster)


async def test_what_kopf_tells_is_kept_and_looked_at(desk: Desk) -> None:
    desk.resync.told("ADDED", body(3))
    assert desk.store.deployment(KEY) is not None
    desk.resync.told("DELETED", body(4))
    assert desk.store.deployment(KEY) is None
    assert desk.looks == [KEY, KEY]


async def test_every_deployment_is_looked_at_anew(desk: Desk, script: Script) -> None:
    desk.resync.told("ADDED", body(3))
    script.replies = [page(body(3))]
    await desk.resync.check()
    assert desk.looks == [KEY, KEY]
    assert desk.resync.problem == ""


async def test_a_lost_event_is_made_up_for_and_reported(desk: Desk, script: Script) -> None:
    desk.resync.told("ADDED", body(3))
    script.replies = [page(body(5))]
    await desk.resync.check()
    kept = desk.store.deployment(KEY)
    assert kept is not None
    assert kept["metadata"]["resourceVersion"] == "5"
    assert "llm/m" in desk.resync.problem
    desk.resync.told("MODIFIED", body(5))
    assert desk.resync.problem == ""  # it was late, and no later than that
    await desk.resync.check()
    assert desk.resync.problem == ""


async def test_a_lost_deletion_is_made_up_for(desk: Desk, script: Script) -> None:
    desk.resync.told("ADDED", body(3))
    script.replies = [page(version=9)]
    await desk.resync.check()
    assert desk.store.deployment(KEY) is None
    assert desk.resync.problem == ""


async def test_a_refresh_has_all_looked_at_and_waits_for_nobody(
    desk: Desk, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resync_module, "PATIENCE_S", 1e9)
    script.replies = [page(body(5), version=5)]
    assert await desk.resync.refresh() == {KEY: 5}
    assert desk.looks == [KEY]
    assert desk.resync.problem == ""


@pytest.mark.parametrize("lasts", [True, False], ids=["created", "deleted"])
async def test_what_kopf_tells_during_a_list_outlasts_it(
    desk: Desk, script: Script, lasts: bool
) -> None:
    async def overtaken(_: web.Request) -> web.Response:
        desk.resync.told("ADDED", body(6))
        if not lasts:
            desk.resync.told("DELETED", body(7))
        return page(version=5) if lasts else page(body(6), version=6)

    script.replies = [overtaken]
    await desk.resync.refresh()
    assert (desk.store.deployment(KEY) is not None) == lasts


async def test_health_is_that_of_the_watches_and_the_queue(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reflector = Reflector(cluster, Store(), Scope(kind=ALWAYS[2]), lambda key: None)
    stuck, problem = [0.0], [""]
    health = Health([reflector], lambda: stuck[0], lambda: problem[0])
    assert health.missing() == "not listed yet: services"
    reflector.listed.set()
    assert (health.missing(), health.fault()) == ("", "")
    problem[0] = "kopf is silent"
    assert health.fault() == "kopf is silent"
    stuck[0] = 1000.0
    assert "for 1000 s" in health.fault()
    monkeypatch.setattr(health_module, "SILENT_S", -1)
    assert "services" in health.fault()

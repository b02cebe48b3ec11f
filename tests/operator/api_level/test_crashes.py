"""The operator dies at each of its writes: the next one ends the work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from pd_operator import names, revisions
from pd_operator.cluster import Cluster
from pd_operator.errors import Conflict
from pd_operator.journal import Journal
from pd_operator.kinds import ALWAYS, CONTROLLER_REVISION, PDDEPLOYMENT, POD, SECRET
from pd_operator.plan import Surroundings
from pd_operator.reconcile import Reconciler, Tools
from pd_operator.resource import Key
from pd_operator.store import Store, packed
from pd_operator.telemetry import Telemetry
from pd_operator.workqueue import WorkQueue
from tests.operator.api_level.operators import Recorded, at_rest
from tests.operator.api_level.space import Space, until
from tests.operator.api_level.wanted import is_as_wanted

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.parametrize("after", [False, True], ids=["before", "after"]),
]

MANY = 40
"""More writes than a look ever makes."""


class Killed(BaseException):
    """The process ended here."""


class Mortal(Cluster):
    """A connection whose process is killed before or after its n-th write."""

    def __init__(self, cluster: Cluster, lives: int, after: bool) -> None:
        super().__init__(cluster._api)
        self.lives, self._after = lives, after

    async def _once(self, method: str, *args: Any, **more: Any) -> Any:
        if method == "GET":
            return await super()._once(method, *args, **more)
        self.lives -= 1
        if self.lives == 0 and not self._after:
            raise Killed
        try:
            return await super()._once(method, *args, **more)
        finally:
            if self.lives == 0:
                raise Killed  # whether it was accepted or not


async def lists(cluster: Cluster, key: Key) -> Store:
    """What a fresh operator knows of it."""
    store, ours = Store(), f"{names.DEPLOYMENT}={key.name}"
    for kind in (*ALWAYS, POD):
        pack = partial(packed, kind)
        entries, version = await cluster.collect(kind, pack, key.namespace, ours)
        store.replace(kind, entries, key.namespace, version)
    store.put(PDDEPLOYMENT, await cluster.get(PDDEPLOYMENT, *key))
    return store


async def one_life(cluster: Cluster, key: Key) -> None:
    """A fresh operator looks at the deployment until others' writes do not overtake it."""
    while True:
        tools = Tools(
            cluster=cluster,
            store=await lists(cluster, key),
            queue=WorkQueue(time.monotonic),
            journal=Journal(cluster, "test"),
            telemetry=Telemetry(),
            prober=None,
        )
        with contextlib.suppress(Conflict):
            await Reconciler(tools, Surroundings(), 300.0)._reconcile(key)
            return


async def dies(space: Space, key: Key, nth: int, after: bool) -> bool:
    """Whether a look ends at its n-th write; it makes fewer otherwise."""
    try:
        await one_life(Mortal(space.cluster, nth, after), key)
    except Killed:
        return True
    return False


def names_of_deployments() -> Iterator[tuple[int, str]]:
    return ((nth, f"m{nth}") for nth in range(1, MANY))


async def written_by_one_more(space: Space, key: Key) -> list[str]:
    """What another look writes, but what it tells."""
    cluster = Recorded(space.cluster)
    await one_life(cluster, key)
    return [each for each in cluster.writes if not each.endswith(("/status", "/events"))]


async def rest(space: Space, name: str) -> None:
    """Wait until the controllers have nothing left to do."""

    async def done() -> bool:
        return at_rest({kind: await space.list(kind, name) for kind in (*ALWAYS, POD)})

    await until("the controllers are at rest", done)


async def test_a_creation_ends_as_if_nothing_had_happened(space: Space, after: bool) -> None:
    for nth, name in names_of_deployments():
        key = Key(space.namespace, name)
        await space.create(name, networkPolicy={"enabled": True})
        died = await dies(space, key, nth, after)
        if not died:
            break
        await one_life(space.cluster, key)
        assert await is_as_wanted(space, name)
        assert [await space.replicas(role, name) for role in names.ROLES] == [1, 2]
        assert (await space.get(SECRET, f"{name}-keys"))["immutable"] is True
        assert await written_by_one_more(space, key) == []
    assert not died
    assert nth > 16


async def test_an_edit_ends_so_too_and_nobody_loses_replicas(space: Space, after: bool) -> None:
    role = {"gpus": 0, "replicas": 2, "autoscaling": {"provider": "External", "maxReplicas": 8}}
    edit: dict[str, Any] = {
        "engine": {"image": "worker:2"},
        "decode": {"shmSize": "1Gi"},
        "networkPolicy": {"enabled": False},
        "router": {"enabled": False},
    }
    for nth, name in names_of_deployments():
        key = Key(space.namespace, name)
        await space.create(name, decode=role, networkPolicy={"enabled": True})
        await one_life(space.cluster, key)
        await space.scale("decode", 5, name)
        await rest(space, name)
        await space.edit(name, **edit)
        died = await dies(space, key, nth, after)
        if not died:
            break
        await one_life(space.cluster, key)
        assert await is_as_wanted(space, name)
        assert [await space.replicas(role, name) for role in names.ROLES] == [2, 5]
        kept, _ = await space.cluster.list(
            CONTROLLER_REVISION, space.namespace, revisions.selector(name)
        )
        assert sorted(map(revisions.number, kept)) == [1, 2]
        await rest(space, name)
        await one_life(space.cluster, key)  # may take the rollout further, now that it has pods
        await rest(space, name)
        assert await written_by_one_more(space, key) == []
    assert not died
    assert nth > 12

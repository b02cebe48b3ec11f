"""Whatever was edited, and wherever the operator was killed: the end is what the spec says."""

from __future__ import annotations

import asyncio
import random
import time
from functools import partial
from typing import Any

import pytest

from pd_operator import names
from pd_operator.cluster import Cluster
from pd_operator.desired import Choices, RoleChoice, desired_state
from pd_operator.drift import drifted
from pd_operator.journal import Journal
from pd_operator.kinds import ALWAYS, PDDEPLOYMENT, POD, SECRET
from pd_operator.objects.meta import annotate
from pd_operator.plan import Surroundings
from pd_operator.reconcile import Reconciler, Tools
from pd_operator.resource import Key, Manifest, Resource
from pd_operator.service import Service
from pd_operator.store import Store, packed
from pd_operator.telemetry import Telemetry
from pd_operator.workqueue import WorkQueue
from tests.operator.api_level.operators import quiet
from tests.operator.api_level.space import Space, until

pytestmark = pytest.mark.cluster

STEPS = 200
EDITS: list[dict[str, Any]] = [
    {"prefill": {"replicas": 1}}, {"prefill": {"replicas": 3}}, {"decode": {"replicas": 1}},
    {"decode": {"replicas": 4}}, {"engine": {"image": "worker:2"}},
    {"engine": {"image": "worker:3", "args": ["--log-level=debug"]}},
    {"decode": {"args": ["--max-running-requests=8"]}}, {"decode": {"args": []}},
    {"prefill": {"nodeSelector": {"a": "b"}}}, {"prefill": {"nodeSelector": None}},
    {"router": {"enabled": False}}, {"router": {"enabled": True, "replicas": 2}},
    {"router": {"replicas": 1, "port": 9000}}, {"networkPolicy": {"enabled": True}},
    {"networkPolicy": {"enabled": False}}, {"suspend": True}, {"suspend": False},
    {"decode": {"autoscaling": {"provider": "External", "maxReplicas": 5}}},
    {"decode": {"autoscaling": {"provider": "HPA", "maxReplicas": 5,
                                "metrics": [{"type": "CPU", "target": 50}]}}},
    {"decode": {"autoscaling": None}}, {"model": {"source": "hf://a/b"}},
    {"model": {"source": "hostpath:///models/tiny"}}, {"decode": {"shmSize": "1Gi"}},
    {"rollout": {"maxSurge": 0, "maxUnavailable": 1}}, {"rollout": {"maxSurge": 2}},
]  # fmt: skip


async def is_as_wanted(space: Space, resource: Resource) -> bool:
    """Every child that the spec asks for is there and says so, and no other."""
    choices = Choices(roles={role: RoleChoice(partition=0) for role in names.ROLES})
    live = await space.children()
    wanted = {(m["kind"], m["metadata"]["name"]): m for m in desired_state(resource, choices)}
    return set(live) == set(wanted) and not any(
        drifted(_without_partition(manifest, live[key]), live[key])
        for key, manifest in wanted.items()
    )


def _without_partition(manifest: Manifest, live: Manifest) -> Manifest:
    """A rollout may be under way: pods do not become ready here."""
    if manifest["kind"] != "StatefulSet":
        return manifest
    spec = {k: v for k, v in manifest["spec"].items() if k != "updateStrategy"}
    mark = live["metadata"]["annotations"][names.APPLIED_HASH]
    return annotate(manifest, **{names.APPLIED_HASH: mark}) | {"spec": spec}


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_walk_of_edits_ends_where_the_last_one_says(
    space: Space, operator: Service
) -> None:
    seed = int(time.time())
    draw = random.Random(seed)
    await space.create()
    for step in range(STEPS):
        await space.edit(**draw.choice(EDITS))
        if step % 20 == 0:
            await space.observed()
    body = await space.get(PDDEPLOYMENT, "m")
    resource = Resource.parse(body)
    await space.observed()
    await until(f"as wanted (seed {seed})", lambda: is_as_wanted(space, resource))
    await quiet(space, operator)


class Killed(BaseException):
    """The process ended here."""


class Mortal(Cluster):
    """A connection whose process is killed before or after its n-th write."""

    def __init__(self, cluster: Cluster, lives: int, after: bool) -> None:
        super().__init__(cluster._api)
        self.lives, self._after = lives, after

    async def _once(self, method: str, *args: Any, **more: Any) -> Manifest:
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


async def lists(cluster: Cluster, namespace: str) -> Store:
    """What a fresh operator knows."""
    store = Store()
    for kind in (*ALWAYS, POD):
        pack = partial(packed, kind)
        entries, version = await cluster.collect(kind, pack, namespace, names.MANAGED_SELECTOR)
        store.replace(kind, entries, namespace, version)
    entries, version = await cluster.collect(PDDEPLOYMENT, partial(packed, PDDEPLOYMENT), namespace)
    store.replace(PDDEPLOYMENT, entries, namespace, version)
    return store


async def one_life(cluster: Cluster, namespace: str) -> Telemetry:
    """A fresh operator looks at the deployment once."""
    telemetry, queue = Telemetry(), WorkQueue(time.monotonic)
    tools = Tools(
        cluster=cluster,
        store=await lists(cluster, namespace),
        queue=queue,
        journal=Journal(cluster, "test"),
        telemetry=telemetry,
        prober=None,
    )
    queue.add(Key(namespace, "m"))
    await Reconciler(tools, Surroundings(), 300.0)._work_on(await queue.get())
    return telemetry


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_each_write_it_ends_as_if_nothing_had_happened(
    space: Space, after: bool
) -> None:
    await space.create(networkPolicy={"enabled": True})
    deaths = 0
    while True:
        try:
            await one_life(Mortal(space.cluster, deaths % 3 + 1, after), space.namespace)
        except Killed:
            deaths += 1
            assert deaths < 150
            await asyncio.sleep(0)
            continue
        break
    resource = Resource.parse(await space.get(PDDEPLOYMENT, "m"))
    await until("as wanted", lambda: is_as_wanted(space, resource))
    assert [await space.replicas(role) for role in names.ROLES] == [1, 2]
    assert (await space.get(SECRET, "m-keys"))["immutable"] is True
    assert deaths >= 8
    before = await space.versions()
    for _ in range(2):
        await one_life(space.cluster, space.namespace)
    assert {k: v for k, v in (await space.versions()).items() if k[0] != names.KIND} == {
        k: v for k, v in before.items() if k[0] != names.KIND
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_killed_in_the_middle_of_an_edit_nobody_loses_replicas(
    space: Space,
) -> None:
    role = {"gpus": 0, "replicas": 2, "autoscaling": {"provider": "External", "maxReplicas": 8}}
    await space.create(decode=role)
    await one_life(space.cluster, space.namespace)
    await space.scale("decode", 5)
    for lives in range(1, 7):
        await space.edit(engine={"image": f"worker:{lives}"}, decode={"shmSize": f"{lives}Gi"})
        try:
            await one_life(Mortal(space.cluster, lives, True), space.namespace)
        except Killed:
            await one_life(space.cluster, space.namespace)
        assert await space.replicas("decode") == 5

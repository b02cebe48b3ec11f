"""Operators in the test's event loop, and what they write."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pd_operator.cluster import Cluster
from pd_operator.kinds import (
    ACCESS_REVIEW,
    ALWAYS,
    DEPLOYMENT,
    PDDEPLOYMENT,
    POD,
    STATEFUL_SET,
    Kind,
)
from pd_operator.options import RunOptions
from pd_operator.resource import Manifest
from pd_operator.service import Service
from tests.operator.api_level.space import Space, until

Objects = dict[Kind, list[Manifest]]


class Recorded(Cluster):
    """A connection that remembers what was written by it, or at least tried."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster._api)
        self.writes: list[str] = []

    async def _once(self, method: str, path: str, *args: Any, **more: Any) -> Any:
        if method != "GET" and not path.endswith(ACCESS_REVIEW.plural):
            self.writes.append(f"{method} {path}")
        return await super()._once(method, path, *args, **more)


def writes(service: Service) -> list[str]:
    """All that an operator has written, events too."""
    assert isinstance(service.cluster, Recorded)
    return service.cluster.writes


async def quiet(space: Space, service: Service, seconds: float = 0.5) -> None:
    """Once all is settled the operator writes nothing, however often it looks, for so long."""
    await settled(space, service)
    before = len(writes(service))
    for _ in range(3):
        await service.resync.refresh()
        await until("all have been looked at", lambda: idle(service))
    await asyncio.sleep(seconds)
    assert writes(service)[before:] == []


async def idle(service: Service) -> bool:
    return service.queue.idle


async def settled(space: Space, service: Service) -> None:
    """Wait until the controllers have done what they can and the operator knows all of it."""

    async def done() -> bool:
        before = await everything(space)
        if not (at_rest(before) and seen(service, space, before) and service.queue.idle):
            return False
        return versions(await everything(space)) == versions(before)

    await until("the cluster and the operator are at rest", done)


async def everything(space: Space) -> Objects:
    return {kind: await space.list(kind) for kind in (*ALWAYS, POD, PDDEPLOYMENT)}


def versions(objects: Objects) -> set[tuple[str, str]]:
    return {
        (each["metadata"]["uid"], each["metadata"]["resourceVersion"])
        for items in objects.values()
        for each in items
    }


def at_rest(objects: Objects) -> bool:
    """True where no controller has anything left to do: without it a status may come late."""
    pods = objects[POD]
    return not any("deletionTimestamp" in each["metadata"] for each in pods) and all(
        _done(each, [pod for pod in pods if _of(each, pod)])
        for kind in (STATEFUL_SET, DEPLOYMENT)
        for each in objects[kind]
    )


def _of(workload: Manifest, pod: Manifest) -> bool:
    selector: dict[str, str] = workload["spec"]["selector"]["matchLabels"]
    labels: dict[str, str] = pod["metadata"]["labels"]
    return selector.items() <= labels.items()


def _done(workload: Manifest, pods: list[Manifest]) -> bool:
    spec, status = workload["spec"], workload.get("status", {})
    ready = sum(
        each["type"] == "Ready" and each["status"] == "True"
        for pod in pods
        for each in pod["status"].get("conditions", [])
    )
    least = spec["replicas"]
    most = least + 1 if workload["kind"] == "Deployment" else least  # its surge
    return bool(
        status.get("observedGeneration") == workload["metadata"]["generation"]
        and least <= len(pods) <= most
        and status.get("replicas", 0) == len(pods)
        and status.get("readyReplicas", 0) == status.get("availableReplicas", 0) == ready
    )


def seen(service: Service, space: Space, objects: Objects) -> bool:
    """True where the operator knows these objects of the namespace, and no others."""
    store = service.store
    keys = [key for key in store.keys() if key.namespace == space.namespace]  # noqa: SIM118
    known = {kind: [m for key in keys for m in store.of(key, kind).values()] for kind in objects}
    return versions(known) == versions(objects)


def options(*namespaces: str) -> RunOptions:
    return RunOptions(namespace=namespaces, leader_elect=False, probe_workers=False, port=0)


@dataclass
class Operator:
    """Operators in the test's event loop, which may be stopped and started again."""

    kubeconfig: Path
    namespace: str
    running: list[tuple[Service, asyncio.Event, asyncio.Task[None], Cluster]] = field(
        default_factory=list
    )

    async def start(self, **changes: Any) -> Service:
        cluster = Recorded(await Cluster.connect(self.kubeconfig))
        service = Service(replace(options(self.namespace), **changes), cluster)
        stop = asyncio.Event()
        task = asyncio.create_task(service.run(stop))
        self.running.append((service, stop, task, cluster))

        async def listed() -> bool:
            if task.done():
                task.result()
            found = service.reflectors
            return bool(found) and all(reflector.listed.is_set() for reflector in found)

        await until("the operator has listed everything", listed)
        return service

    async def stop(self) -> None:
        """All of them, as SIGTERM does it."""
        for _, stop, task, cluster in self.running:
            stop.set()
            await task
            await cluster.close()
        self.running.clear()

"""A namespace of a test's own, and what people do in it."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from pd_operator import names
from pd_operator.cluster import Cluster
from pd_operator.errors import NotFound
from pd_operator.kinds import ALWAYS, PDDEPLOYMENT, STATEFUL_SET, Kind
from pd_operator.resource import Manifest
from tests.cluster.client import Client
from tests.operator.builders import deployment

SERVICES = ALWAYS[2]
Condition = Callable[[], Coroutine[Any, Any, bool]]


async def until(what: str, done: Condition, timeout_s: float = 60.0) -> None:
    """Poll until `done` is true; an API error means not yet."""
    end = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(NotFound):
            if await done():
                return
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(0.05)


@dataclass
class Space:
    """A namespace, and what tests do in it."""

    api: Client
    cluster: Cluster
    namespace: str

    def body(self, name: str = "m", **spec: Any) -> Manifest:
        """A PDDeployment without what only the API server gives. Its workers have nothing to finish
        when they go, as nobody can ask them."""
        made = copy.deepcopy(deployment(**spec))
        for role in names.ROLES:
            made["spec"][role] = {"drainTimeoutSeconds": 0} | made["spec"][role]
        made["metadata"] = {"name": name, "namespace": self.namespace}
        return made

    async def create(self, name: str = "m", **spec: Any) -> Manifest:
        return await self.cluster.create(PDDEPLOYMENT, self.body(name, **spec))

    async def edit(self, name: str = "m", **spec: Any) -> Manifest:
        return await self.cluster.patch(PDDEPLOYMENT, self.namespace, name, {"spec": spec})

    async def delete(self, name: str = "m") -> None:
        found = await self.get(PDDEPLOYMENT, name)
        uid = found["metadata"]["uid"]
        await self.cluster.delete(PDDEPLOYMENT, self.namespace, name, uid)

    async def get(self, kind: Kind, name: str) -> Manifest:
        return await self.cluster.get(kind, self.namespace, name)

    async def list(self, kind: Kind, name: str = "") -> list[Manifest]:
        """All that are ours, or those of one deployment."""
        selector = "" if kind == PDDEPLOYMENT else names.MANAGED_SELECTOR
        selector += f",{names.DEPLOYMENT}={name}" if name else ""
        items, _ = await self.cluster.list(kind, self.namespace, selector)
        return items

    async def children(self, name: str = "") -> dict[tuple[str, str], Manifest]:
        """Everything that belongs to all deployments or one, but pods."""
        lists = [await self.list(kind, name) for kind in ALWAYS]
        return {(m["kind"], m["metadata"]["name"]): m for items in lists for m in items}

    async def versions(self) -> dict[tuple[str, str], str]:
        """The version of each object of ours: unchanged means that nobody wrote it."""
        everything = await self.children()
        for item in await self.list(PDDEPLOYMENT):
            everything[names.KIND, item["metadata"]["name"]] = item
        return {key: m["metadata"]["resourceVersion"] for key, m in everything.items()}

    async def status(self, name: str = "m") -> Manifest:
        found: Manifest = (await self.get(PDDEPLOYMENT, name)).get("status", {})
        return found

    async def conditions(self, name: str = "m") -> dict[str, str]:
        """`True Reason` of each."""
        found = (await self.status(name)).get("conditions", [])
        return {each["type"]: f"{each['status']} {each['reason']}" for each in found}

    async def replicas(self, role: str, name: str = "m") -> int:
        spec: Manifest = (await self.get(STATEFUL_SET, f"{name}-{role}"))["spec"]
        return int(spec["replicas"])

    async def scale(self, role: str, replicas: int, name: str = "m") -> None:
        """kubectl scale."""
        target = f"statefulset/{name}-{role}"
        flags = (f"--replicas={replicas}", "-n", self.namespace)
        await asyncio.to_thread(self.api.kubectl, "scale", target, *flags)

    async def condition(self, kind: str, wanted: str, name: str = "m") -> None:
        """Wait for a condition to say `True Reason`, or to begin so."""

        async def done() -> bool:
            return (await self.conditions(name)).get(kind, "").startswith(wanted)

        await until(f"{kind} is {wanted}", done)

    async def observed(self, name: str = "m") -> None:
        """Wait until the operator has told of the latest generation."""

        async def done() -> bool:
            found = await self.get(PDDEPLOYMENT, name)
            seen = found.get("status", {}).get("observedGeneration")
            return bool(seen == found["metadata"]["generation"])

        await until("observedGeneration", done)

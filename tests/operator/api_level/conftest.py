"""The operator against a real API server and real controllers; pods are played by a small kubelet.

`cluster` is a client of ours, `space` a namespace of the test's own with what tests do in it,
`operator` starts an operator of its own for it, in the test's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pd_operator import names
from pd_operator.cluster import Cluster
from pd_operator.errors import ApiError, NotFound
from pd_operator.kinds import ALWAYS, PDDEPLOYMENT, POD, STATEFUL_SET, Kind
from pd_operator.options import RunOptions
from pd_operator.resource import Manifest
from pd_operator.service import Service
from tests.cluster.client import Client
from tests.operator.builders import deployment

CRD = Path(__file__).parents[3] / "crds/pddeployments.pdserve.io.yaml"
SERVICES = ALWAYS[2]
Condition = Callable[[], Coroutine[Any, Any, bool]]


@pytest.fixture(scope="session")
def api(control_plane: Client) -> Client:
    """The control plane with the CRD."""
    control_plane.kubectl("apply", "--server-side", "-f", str(CRD))
    control_plane.kubectl("wait", "--for=condition=Established", f"crd/{names.CRD_NAME}")
    return control_plane


@pytest.fixture
async def cluster(api: Client) -> AsyncIterator[Cluster]:
    connected = await Cluster.connect(api.kubeconfig)
    yield connected
    await connected.close()


def writes(service: Service, *but: str) -> float:
    """How many writes an operator has made, but those of some kinds."""
    families = service.telemetry.registry.collect()
    samples = [sample for family in families for sample in family.samples]
    counts = [each for each in samples if each.name == "pdserve_operator_writes_total"]
    return sum(each.value for each in counts if each.labels["kind"] not in but)


async def quiet(service: Service, *but: str, seconds: float = 1.0) -> None:
    """The operator writes nothing, but for some kinds, for so long."""
    before = writes(service, *but)
    await asyncio.sleep(seconds)
    assert writes(service, *but) == before


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
        """A PDDeployment without what only the API server gives."""
        made = copy.deepcopy(deployment(**spec))
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

    async def list(self, kind: Kind) -> list[Manifest]:
        items, _ = await self.cluster.list(kind, self.namespace, names.MANAGED_SELECTOR)
        return items

    async def children(self) -> dict[tuple[str, str], Manifest]:
        """Everything that belongs to deployments, but pods."""
        lists = [await self.list(kind) for kind in ALWAYS]
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


@pytest.fixture
async def space(api: Client, cluster: Cluster, namespace: str) -> Space:
    return Space(api, cluster, namespace)


def options(*namespaces: str) -> RunOptions:
    return RunOptions(namespace=namespaces, leader_elect=False, probe_workers=False, port=0)


@dataclass
class Operator:
    """Operators in the test's event loop, which may be stopped and started again."""

    api: Client
    namespace: str
    running: list[tuple[Service, asyncio.Event, asyncio.Task[None], Cluster]] = field(
        default_factory=list
    )

    async def start(self, **changes: Any) -> Service:
        cluster = await Cluster.connect(self.api.kubeconfig)
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


@pytest.fixture
async def operators(api: Client, namespace: str) -> AsyncIterator[Operator]:
    found = Operator(api, namespace)
    yield found
    await found.stop()


@pytest.fixture
async def operator(operators: Operator) -> Service:
    """One that runs."""
    return await operators.start()


class Kubelet:
    """Makes pods run, or not: `verdict` names the state for an image."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.verdicts: dict[str, str] = {}
        """By image: `ready` (the default), `starting`, `crashing` or `unschedulable`."""
        self.seen: set[str] = set()
        """Images of pods that became ready."""

    async def run(self) -> None:
        while True:
            with contextlib.suppress(ApiError):
                items, _ = await self._space.cluster.list(POD, self._space.namespace)
                for pod in items:
                    if "deletionTimestamp" not in pod["metadata"]:
                        await self._tend(pod)
            await asyncio.sleep(0.05)

    async def _tend(self, pod: Manifest) -> None:
        container = pod["spec"]["containers"][0]
        verdict = self.verdicts.get(container["image"], "ready")
        wanted = _status(verdict, container["name"])
        if verdict == "ready":
            self.seen.add(container["image"])
        if pod["status"].get("message") == verdict:
            return
        change = {"status": {"message": verdict, **wanted}}
        await self._space.cluster.patch(
            POD, self._space.namespace, pod["metadata"]["name"], change, subresource="status"
        )


def _status(verdict: str, container: str) -> Manifest:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "True" if verdict == "ready" else "False"}
    state: Manifest = {"running": {"startedAt": now}}
    if verdict == "unschedulable":
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        return {"phase": "Pending", "conditions": [scheduled]}
    if verdict == "crashing":
        state = {"waiting": {"reason": "CrashLoopBackOff"}}
    status = {
        "name": container, "image": "i", "imageID": "", "ready": verdict == "ready",
        "restartCount": int(verdict == "crashing"), "state": state,
    }  # fmt: skip
    return {
        "phase": "Running",
        "podIP": "10.0.0.9",
        "conditions": [ready | {"lastTransitionTime": now}],
        "containerStatuses": [status],
    }


@pytest.fixture
async def kubelet(space: Space) -> AsyncIterator[Kubelet]:
    made = Kubelet(space)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

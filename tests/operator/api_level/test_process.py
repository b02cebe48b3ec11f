"""The operator as a process: replicas of it, permissions, and an API server that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pd_operator import cluster as cluster_module
from pd_operator import handlers as handlers_module
from pd_operator import lease as lease_module
from pd_operator.cluster import Cluster
from pd_operator.errors import OperatorError
from pd_operator.kinds import DEPLOYMENT
from pd_operator.service import Service
from tests.cluster.client import Client
from tests.operator.api_level.operators import Operator, idle, options
from tests.operator.api_level.space import SERVICES, Space, until

pytestmark = pytest.mark.cluster


async def told(space: Space, name: str, port: int) -> None:
    async def done() -> bool:
        return bool((await space.get(SERVICES, name))["spec"]["ports"][0]["port"] == port)

    await until(f"port {port} of {name}", done, timeout_s=40)


async def test_of_two_replicas_one_acts_and_the_other_takes_over(
    space: Space, api: Client, operators: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RETRY_S", 0.2)
    elected: dict[str, Any] = {"leader_elect": True, "lease": f"{space.namespace}/pdserve"}
    first = await operators.start(**elected)

    async def leading() -> bool:
        return first.election.leading

    await until("a leader", leading)
    second = await operators.start(**elected)
    await space.create()
    await space.observed()
    assert (first.election.leading, second.election.leading) == (True, False)
    _, stop, task, cluster = operators.running.pop(0)
    stop.set()
    await task
    await cluster.close()
    await space.edit(router={"port": 9000})
    await told(space, "m", 9000)
    assert second.election.leading


async def test_one_operator_serves_all_namespaces(space: Space, operators: Operator) -> None:
    await operators.start(namespace=())
    await space.create()
    await space.observed()
    assert await space.list(DEPLOYMENT)


async def test_a_namespaced_operator_leaves_others_alone(space: Space, operators: Operator) -> None:
    service = await operators.start(namespace=("default",))
    await space.create()
    for _ in range(3):
        await service.resync.check()
        await until("all have been looked at", lambda: idle(service))
    assert service.store.keys() == []
    assert await space.children() == {}


async def test_a_missing_permission_is_named_at_the_start(
    space: Space, api: Client, tmp_path: Path
) -> None:
    rules = [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch", "create"]},
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["delete"]},
    ]
    group = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "r"},
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "r"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": space.namespace}],
    }
    api.apply(role, binding, namespace=space.namespace)
    token = api.kubectl("create", "token", "default", "-n", space.namespace).strip()
    config = yaml.safe_load(api.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    (tmp_path / "config").write_text(json.dumps(config))
    cluster = await Cluster.connect(tmp_path / "config")
    with pytest.raises(OperatorError) as refusal:
        await Service(options(space.namespace), cluster).run(asyncio.Event())
    await cluster.close()
    assert f"patch statefulsets.apps in {space.namespace}" in str(refusal.value)
    assert "create statefulsets" not in str(refusal.value)


class Line:
    """The network between an operator and the API server."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.up, self.frozen = True, asyncio.Event()
        self.frozen.set()
        self.calls = 0
        """Connections that were asked for."""

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        if not self.up:
            writer.transport.abort()
            return
        behind, ahead = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, ahead}
        for source, sink in ((reader, ahead), (behind, writer)):
            self._tasks.add(asyncio.create_task(self._pump(source, sink)))

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                await self.frozen.wait()
                sink.write(data)
                await sink.drain()
        sink.transport.abort()

    async def called(self, times: int) -> None:
        """Wait until so many more connections have been asked for."""
        wanted = self.calls + times

        async def done() -> bool:
            return self.calls >= wanted

        await until(f"{times} calls", done)

    def cut(self) -> None:
        """Reset every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def close(self) -> None:
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.fixture
async def line(api: Client) -> AsyncIterator[tuple[Line, str]]:
    """The line and the URL at its near end."""
    config = yaml.safe_load(api.kubeconfig.read_text())
    port = int(config["clusters"][0]["cluster"]["server"].rpartition(":")[2])
    made = Line(port)
    server = await asyncio.start_server(made.connect, "127.0.0.1", 0)
    near = server.sockets[0].getsockname()[1]
    yield made, f"https://127.0.0.1:{near}"
    server.close()
    await made.close()


@pytest.fixture
async def far_operator(
    space: Space, api: Client, line: tuple[Line, str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Service]:  # fmt: skip
    """An operator at the other end of the line, which is impatient."""
    for module in (cluster_module, handlers_module):
        monkeypatch.setattr(module, "SILENCE_S", 3.0)
    config = yaml.safe_load(api.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = line[1]
    (tmp_path / "config").write_text(json.dumps(config))
    cluster = await Cluster.connect(tmp_path / "config")
    service, stop = Service(options(space.namespace), cluster), asyncio.Event()
    task = asyncio.create_task(service.run(stop))
    await space.create()
    await space.observed()
    yield service
    line[0].up = True
    line[0].frozen.set()
    stop.set()
    await task
    await cluster.close()


async def test_resets_are_outlived(
    space: Space, line: tuple[Line, str], far_operator: Service
) -> None:
    for _ in range(20):
        line[0].cut()
        await line[0].called(1)
    await space.edit(router={"port": 9000})
    await told(space, "m", 9000)


async def test_an_outage_is_outlived(
    space: Space, line: tuple[Line, str], far_operator: Service
) -> None:
    line[0].up = False
    line[0].cut()
    await line[0].called(30)
    await space.edit(router={"port": 9000})
    line[0].up = True
    await told(space, "m", 9000)


async def test_a_line_that_falls_silent_is_noticed(
    space: Space, line: tuple[Line, str], far_operator: Service
) -> None:
    line[0].frozen.clear()
    await space.edit(router={"port": 9000})
    await line[0].called(1)  # a watch that says nothing has been given up
    line[0].cut()
    line[0].frozen.set()
    await told(space, "m", 9000)

"""The operator against a real API server and real controllers; pods are played by a small kubelet.

`cluster` is a client of ours, `space` a namespace of the test's own with what tests do in it,
`operator` starts an operator of its own for it, in the test's event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pd_operator import names
from pd_operator.cluster import Cluster
from pd_operator.service import Service
from tests.cluster.client import Client
from tests.operator.api_level.kubelet import Kubelet
from tests.operator.api_level.operators import Operator
from tests.operator.api_level.space import Space

CRD = Path(__file__).parents[3] / "crds/pddeployments.pdserve.io.yaml"


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


@pytest.fixture
async def space(api: Client, cluster: Cluster, namespace: str) -> Space:
    return Space(api, cluster, namespace)


@pytest.fixture
async def operators(api: Client, namespace: str) -> AsyncIterator[Operator]:
    found = Operator(api.kubeconfig, namespace)
    yield found
    await found.stop()


@pytest.fixture
async def operator(operators: Operator) -> Service:
    """One that runs."""
    return await operators.start()


@pytest.fixture
async def kubelet(space: Space) -> AsyncIterator[Kubelet]:
    made = Kubelet(space)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

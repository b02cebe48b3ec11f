"""The operator beside other people's programs, on a control plane of its own with kwok's nodes.

The fixtures are those of api_level, which take this control plane.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from pd_operator import names
from pd_operator.cluster import Cluster
from pd_operator.kinds import POD_MONITOR
from pd_operator.resource import Manifest
from tests.cluster import extras
from tests.cluster.client import Client
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import programs, running
from tests.operator.api_level.conftest import CRD, cluster, operator, operators, space
from tests.operator.extras.fleet import PODS, Fleet, serving

__all__ = ["cluster", "operator", "operators", "space"]

MONITORS = "podmonitors.monitoring.coreos.com"
SCHEMA = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
MONITOR_CRD: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": MONITORS},
    "spec": {
        "group": POD_MONITOR.group,
        "names": {"kind": POD_MONITOR.name, "plural": POD_MONITOR.plural},
        "scope": "Namespaced",
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": SCHEMA}],
    },
}
"""Prometheus' operator is not here: tests/cluster/prometheus.py does what it would."""


@pytest.fixture(scope="package")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, Client]]:
    """With nodes whose pods are ready at once."""
    [kwok] = programs("kwok")
    with running(tmp_path_factory.mktemp("extras")) as (plane, client):
        extras.start_kwok(plane, client, kwok / "kwok", nodes=3, pods=PODS)
        client.apply(MONITOR_CRD)
        client.kubectl("apply", "--server-side", "-f", str(CRD))
        for crd in (names.CRD_NAME, MONITORS):
            client.kubectl("wait", "--for=condition=Established", f"crd/{crd}")
        yield plane, client


@pytest.fixture(scope="package")
def plane(stand: tuple[ControlPlane, Client]) -> ControlPlane:
    return stand[0]


@pytest.fixture(scope="package")
def control_plane(stand: tuple[ControlPlane, Client]) -> Client:
    """Instead of the one without nodes."""
    return stand[1]


@pytest.fixture(scope="package")
def api(control_plane: Client) -> Client:
    return control_plane


@pytest.fixture(scope="package")
def keda(plane: ControlPlane, api: Client) -> None:
    """KEDA's operator and adapter."""
    [folder] = programs("keda")
    extras.start_keda(plane, api, folder)


@pytest.fixture
async def fleet(cluster: Cluster) -> AsyncIterator[Fleet]:
    """Workers' metrics, to be given to pods."""
    async with serving(cluster) as made:
        yield made


@pytest.fixture(scope="package")
def lws(plane: ControlPlane, api: Client) -> None:
    """LeaderWorkerSet's controller and webhooks."""
    [folder] = programs("lws")
    extras.start_lws(plane, api, folder)

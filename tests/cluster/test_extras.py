"""What tests of scale and of other scalers stand on: kwok, KEDA, LeaderWorkerSet."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.cluster import extras
from tests.cluster.client import Client, until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.fixtures import programs, running
from tests.cluster.test_control_plane import stateful_set

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ControlPlane, Client]]:
    """A control plane of the module's own, with three nodes that are not there."""
    [kwok] = programs("kwok")
    with running(tmp_path_factory.mktemp("extras")) as (plane, client):
        extras.start_kwok(plane, client, kwok / "kwok", nodes=3)
        yield plane, client


@pytest.fixture
def client(plane: tuple[ControlPlane, Client]) -> Client:
    return plane[1]


def test_kwok_makes_pods_ready(client: Client) -> None:
    client.apply(stateful_set("web", 30))
    ready = "--for=jsonpath={.status.readyReplicas}=30"
    client.kubectl("wait", ready, "statefulset/web", "--timeout=60s")
    nodes = {pod["spec"]["nodeName"] for pod in client.get("pods", "-l", "app=web")}
    assert nodes == {"fake-0", "fake-1", "fake-2"}


class Prometheus(BaseHTTPRequestHandler):
    """Answers every query with one number."""

    value = "6"

    def do_GET(self) -> None:
        result = [{"metric": {}, "value": [0, self.value]}]
        body = {"status": "success", "data": {"resultType": "vector", "result": result}}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        """Silence."""


@pytest.fixture
def prometheus() -> Iterator[str]:
    """URL of a server that says 6."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Prometheus) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def scaled_object(name: str, prometheus: str) -> dict[str, Any]:
    trigger = {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {"serverAddress": prometheus, "query": "waiting", "threshold": "2"},
    }
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name},
            "minReplicaCount": 1,
            "maxReplicaCount": 5,
            "triggers": [trigger],
        },
    }


def test_keda_scales_by_a_query(plane: tuple[ControlPlane, Client], prometheus: str) -> None:
    [keda] = programs("keda")
    extras.start_keda(*plane, keda)
    _, client = plane
    client.apply(stateful_set("scaled", 1), scaled_object("scaled", prometheus))
    wanted = "--for=jsonpath={.spec.replicas}=3"  # 6 in all, 2 for each
    client.kubectl("wait", wanted, "statefulset/scaled", "--timeout=90s")


def test_leader_worker_sets_come_up(plane: tuple[ControlPlane, Client]) -> None:
    [lws] = programs("lws")
    extras.start_lws(*plane, lws)
    _, client = plane
    container = {"name": "main", "image": "none.invalid/none"}
    template = {"spec": {"containers": [container]}}
    group = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "pair"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template}},
    }
    client.apply(group)
    client.kubectl("wait", "--for=condition=Available", "lws/pair", "--timeout=90s")
    named = "leaderworkerset.sigs.k8s.io/name=pair"
    until("four pods", lambda: len(client.get("pods", "-l", named)) == 4)

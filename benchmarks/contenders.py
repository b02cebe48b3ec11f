"""The controllers that are compared: pdserve's operator and LeaderWorkerSet's.

Each has a user of its own at the API server, so that the audit log tells them apart.
"""

from __future__ import annotations

import sys
import urllib.request
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from prometheus_client.parser import text_string_to_metric_families

from pd_operator import names
from pd_operator.desired import Choices, desired_state
from pd_operator.kinds import PDDEPLOYMENT, STATEFUL_SET, Kind
from pd_operator.resource import Manifest, Resource
from tests.cluster import extras
from tests.cluster.binaries import ensure
from tests.cluster.client import Client, until
from tests.cluster.control_plane import ControlPlane, free_ports

CRD = Path(__file__).parents[1] / "crds/pddeployments.pdserve.io.yaml"
NAMESPACE = "scale"
IMAGE = "none.invalid/none:1"


@dataclass(slots=True)
class Contender(ABC):
    """A controller that makes pairs of workers."""

    plane: ControlPlane
    client: Client

    user: ClassVar[str]
    """At the API server; also the name of its process."""
    kind: ClassVar[Kind]
    """Of the objects, each of which is one pair."""

    @abstractmethod
    def prepare(self) -> None:
        """What is needed before the first start."""

    @abstractmethod
    def start(self) -> None:
        """Start the controller; returns when it is at work."""

    @abstractmethod
    def manifest(self, number: int, *, pods: bool = True) -> Manifest:
        """One pair; without pods where it is to weigh nothing."""

    @abstractmethod
    def children(self, number: int) -> set[tuple[str, str]]:
        """Resource and name of everything that the controller applies for a pair."""

    def stop(self) -> None:
        """End the controller."""
        self.plane.processes.stop(self.user)

    @property
    def pid(self) -> int:
        """Of the controller."""
        found = self.plane.processes.pid(self.user)
        assert found, f"{self.user} ended: {self.plane.processes.log(self.user)}"
        return found


@dataclass(slots=True)
class Operator(Contender):
    """`python -m pd_operator run`."""

    user: ClassVar[str] = "pdserve"
    kind: ClassVar[Kind] = PDDEPLOYMENT
    elected: bool = False
    """Whether it elects a leader, as in a cluster; then its Lease is renewed."""
    resync_s: float = 300.0
    """It looks at each deployment at least this often."""
    port: int = 0
    """Of its metrics, while it runs."""

    def prepare(self) -> None:
        self.client.kubectl("apply", "--server-side", "-f", str(CRD))
        self.client.kubectl("wait", "--for=condition=Established", f"crd/{names.CRD_NAME}")

    def start(self) -> None:
        self.launch()
        log = self.plane.processes.log(self.user)
        ready = f"http://127.0.0.1:{self.port}/readyz"
        until(f"{self.user} is ready: {log}", lambda: fetched(ready) == "ok", timeout_s=120)

    def launch(self) -> None:
        """Start it and wait for nothing."""
        [self.port] = free_ports(1)
        self.plane.processes.start(
            self.user,
            *("env", f"KUBECONFIG={self.plane.state / self.user}.conf"),
            *(sys.executable, "-m", "pd_operator", "run", "--port", str(self.port)),
            *("--resync-s", str(self.resync_s)),
            "--no-probe-workers",  # it is outside of the pods' network
            *(("--lease", "default/pdserve") if self.elected else ("--no-leader-elect",)),
        )

    def manifest(self, number: int, *, pods: bool = True) -> Manifest:
        size = {"replicas": int(pods)}
        return {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": f"pair-{number:05}", "namespace": NAMESPACE},
            "spec": {
                "model": {"source": "hf://org/model"},
                "engine": {"image": IMAGE},
                "prefill": size,
                "decode": size,
                "router": size,
            },
        }

    def children(self, number: int) -> set[tuple[str, str]]:
        resource = Resource.parse(self.manifest(number))
        return {
            (f"{m['kind'].lower()}s", m["metadata"]["name"])
            for m in desired_state(resource, Choices())
        }

    @property
    def looks(self) -> int:
        """How often it has looked at a deployment since it started."""
        return int(self.metric("pdserve_operator_reconcile_seconds_count"))

    def metric(self, name: str) -> float:
        """A number of its own metrics; 0 where it does not answer or does not have it."""
        text = fetched(f"http://127.0.0.1:{self.port}/metrics")
        families = text_string_to_metric_families(text)
        samples = [sample for family in families for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == name)


def fetched(url: str) -> str:
    """What a server answers; empty while it does not."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            text: str = answer.read().decode()
            return text
    except OSError:
        return ""


@dataclass(slots=True)
class LeaderWorkerSets(Contender):
    """LeaderWorkerSet's controller with its webhooks, built from its Go module."""

    user: ClassVar[str] = "lws"
    kind: ClassVar[Kind] = Kind(
        "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "leaderworkersets"
    )

    def prepare(self) -> None:
        """Its CRD and webhooks come with the start."""

    def start(self) -> None:
        [folder] = ensure("lws")
        extras.start_lws(self.plane, self.client, folder, self.plane.state / f"{self.user}.conf")

    def manifest(self, number: int, *, pods: bool = True) -> Manifest:
        worker = {"spec": {"containers": [{"name": "worker", "image": IMAGE}]}}
        return {
            "apiVersion": self.kind.api_version,
            "kind": self.kind.name,
            "metadata": {"name": f"pair-{number:05}", "namespace": NAMESPACE},
            "spec": {
                "replicas": int(pods),
                "leaderWorkerTemplate": {"size": 2, "workerTemplate": worker},
            },
        }

    def children(self, number: int) -> set[tuple[str, str]]:
        name = f"pair-{number:05}"
        return {(STATEFUL_SET.plural, name), (STATEFUL_SET.plural, f"{name}-0")}

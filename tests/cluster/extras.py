"""Other people's programs beside a control plane: kwok's nodes, KEDA, LeaderWorkerSet.

They run as processes of this machine, as the cluster's administrator; the API server finds their
webhooks and metrics at ports of loopback.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.client import Client
from tests.cluster.control_plane import ControlPlane, free_ports

Object = dict[str, Any]


def start_kwok(
    plane: ControlPlane, client: Client, program: Path, *, nodes: int, pods: str = "10.0.0.1/24"
) -> None:
    """A scheduler, and nodes that are not there: pods on them are Running and Ready at once, with
    addresses of that network."""
    [metrics, scheduler] = free_ports(2)
    plane.processes.start(
        "kwok",
        program,
        f"--kubeconfig={plane.kubeconfig}",
        "--manage-all-nodes",
        f"--cidr={pods}",
        f"--server-address=127.0.0.1:{metrics}",
        "--node-lease-duration-seconds=40",
    )
    plane.processes.start(
        "kube-scheduler",
        plane.programs / "kube-scheduler",
        f"--kubeconfig={plane.kubeconfig}",
        f"--secure-port={scheduler}",
        f"--cert-dir={plane.state / 'scheduler'}",
        "--leader-elect=false",
    )
    client.apply(*(_fake_node(number) for number in range(nodes)))
    ready = ("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
    client.kubectl(*ready)


def _fake_node(number: int) -> Object:
    size = {"cpu": "128", "memory": "1Ti", "pods": "1000", "nvidia.com/gpu": "1000"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"fake-{number}", "labels": {"type": "kwok"}},
        "status": {"allocatable": size, "capacity": size},
    }


def start_keda(plane: ControlPlane, client: Client, folder: Path) -> None:
    """KEDA's operator and its metrics adapter."""
    _apply_files(client, (folder / "config/crd/bases").glob("keda.sh_*.yaml"))
    client.kubectl("create", "namespace", "keda")
    certificates = _certificates(plane, "keda")
    kubeconfig = f"KUBECONFIG={plane.kubeconfig}"
    own = ("POD_NAMESPACE=keda", "KEDA_CLUSTER_OBJECT_NAMESPACE=keda")
    settings = ("env", kubeconfig, "WATCH_NAMESPACE=", *own)
    [service, health, metrics, adapter, adapter_metrics] = free_ports(5)
    plane.processes.start(
        "keda-operator",
        *(*settings, folder / "keda-operator"),
        f"--cert-dir={certificates}",
        f"--metrics-service-bind-address=127.0.0.1:{service}",
        f"--health-probe-bind-address=127.0.0.1:{health}",
        f"--metrics-bind-address=127.0.0.1:{metrics}",
    )
    plane.processes.start(
        "keda-adapter",
        *(*settings, folder / "keda-adapter"),
        *(
            f"--{what}-kubeconfig={plane.kubeconfig}"
            for what in ("authentication", "authorization")
        ),
        f"--lister-kubeconfig={plane.kubeconfig}",
        f"--metrics-service-address=localhost:{service}",
        f"--secure-port={adapter}",
        f"--port={adapter_metrics}",
        f"--cert-dir={certificates}",
        f"--tls-cert-file={certificates / 'tls.crt'}",
        f"--tls-private-key-file={certificates / 'tls.key'}",
    )
    client.apply(*_api_service("external.metrics.k8s.io", "v1beta1", adapter), namespace="keda")
    served = "apiservice/v1beta1.external.metrics.k8s.io"
    client.kubectl("wait", "--for=condition=Available", served, "--timeout=60s")


def _api_service(group: str, version: str, port: int) -> list[Object]:
    name = group.replace(".", "-")
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{version}.{group}"},
            "spec": {
                "group": group,
                "version": version,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"name": name, "namespace": "keda", "port": port},
            },
        },
    ]


def start_lws(
    plane: ControlPlane, client: Client, folder: Path, kubeconfig: Path | None = None
) -> None:
    """LeaderWorkerSet's controller with its webhooks, as the user of `kubeconfig`."""
    [webhooks, health, metrics] = free_ports(3)
    certificates = _certificates(plane, "lws")
    config = {
        "apiVersion": "config.lws.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": webhooks, "certDir": str(certificates)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
    }
    file = plane.state / "lws.yaml"
    file.write_text(json.dumps(config))
    _apply_files(client, (folder / "config/crd/bases").glob("*.yaml"))
    command = ("env", f"KUBECONFIG={kubeconfig or plane.kubeconfig}", folder / "lws-controller")
    plane.processes.start("lws", *command, f"--config={file}")
    plane.processes.wait("lws", lambda: "Serving webhook server" in _log(plane, "lws"))
    found = yaml.safe_load_all((folder / "config/webhook/manifests.yaml").read_text())
    client.apply(*(_at_loopback(one, webhooks, plane) for one in found))


def _at_loopback(configuration: Object, port: int, plane: ControlPlane) -> Object:
    """The webhooks at a port of this machine instead of a Service."""
    for webhook in configuration["webhooks"]:
        path = webhook["clientConfig"]["service"]["path"]
        authority = plane.pki.base64("ca")
        url = f"https://localhost:{port}{path}"
        webhook["clientConfig"] = {"url": url, "caBundle": authority}
    return configuration


def _certificates(plane: ControlPlane, name: str) -> Path:
    """A folder with ca.crt, tls.crt and tls.key for localhost."""
    folder = plane.state / "pki" / f"{name}-files"
    folder.mkdir()
    plane.pki.issue(name, f"/CN={name}", "DNS:localhost", "IP:127.0.0.1")
    (folder / "ca.crt").symlink_to(plane.pki.crt("ca"))
    (folder / "tls.crt").symlink_to(plane.pki.crt(name))
    (folder / "tls.key").symlink_to(plane.pki.key(name))
    return folder


def _apply_files(client: Client, files: Iterable[Path]) -> None:
    for file in files:
        client.kubectl("apply", "--server-side", "-f", str(file))


def _log(plane: ControlPlane, name: str) -> str:
    return plane.processes.log(name).read_text(errors="replace")

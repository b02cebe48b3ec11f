"""A real Prometheus beside a control plane, which scrapes the pods that PodMonitors name.

Prometheus' operator is not there; `scrape_config` makes of a PodMonitor what it would. Debian's
Prometheus does not know Kubernetes; `discovered` says by HTTP what it would find there.
"""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.control_plane import ControlPlane, free_ports
from tests.cluster.packages import require

Object = dict[str, Any]
POD = "__meta_kubernetes_pod_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prometheus:
    """One that runs."""

    url: str

    def query(self, expression: str) -> float | None:
        """The value of an expression that has one; None where it has none (yet)."""
        result = self._ask("query", query=expression)["result"]
        assert len(result) <= 1, f"{expression} has {len(result)} values"
        return float(result[0]["value"][1]) if result else None

    def healthy(self) -> set[str]:
        """Addresses of the pods whose last scrape worked."""
        targets = self._ask("targets", state="active")["activeTargets"]
        return {each["discoveredLabels"]["__address__"] for each in targets
                if each["health"] == "up"}  # fmt: skip

    def _ask(self, what: str, **parameters: str) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]


@contextmanager
def prometheus(
    plane: ControlPlane, folder: Path, *scraped: Object, port: int = 0
) -> Iterator[Prometheus]:
    """One with these scrape configurations, which keeps its data in `folder`. Raises MissingError
    where the program cannot be had."""
    require("prometheus")
    port = port or free_ports(1)[0]
    config = {"scrape_configs": scraped}
    file = folder / "prometheus.json"  # JSON is YAML
    file.write_text(json.dumps(config))
    plane.processes.start(
        "prometheus",
        "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    )
    try:
        started = Prometheus(url=f"http://127.0.0.1:{port}")
        plane.processes.wait("prometheus", lambda: _ready(started.url))
        yield started
    finally:
        plane.processes.stop("prometheus")


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def scrape_config(monitor: Object, discovery: str, interval: str) -> Object:
    """Of a PodMonitor with one endpoint and labels that match exactly, but scraped as often as
    `interval` says. `discovery` is a URL where the namespace's pods are discovered."""
    meta, spec = monitor["metadata"], monitor["spec"]
    [endpoint] = spec["podMetricsEndpoints"]
    labels = spec["selector"]["matchLabels"]
    keep = [_keep(f"label_{_safe(name)}", value) for name, value in labels.items()]
    copied = {"namespace": "__meta_kubernetes_namespace", "pod": f"{POD}name",
              "container": f"{POD}container_name"}  # fmt: skip
    copied |= {_safe(name): f"{POD}label_{_safe(name)}" for name in spec["podTargetLabels"]}
    return {
        "job_name": f"podMonitor/{meta['namespace']}/{meta['name']}/0",
        "honor_labels": False,
        "scrape_interval": interval,
        "scrape_timeout": interval,
        "metrics_path": endpoint["path"],
        "http_sd_configs": [{"url": discovery, "refresh_interval": interval}],
        "relabel_configs": [
            *keep,
            _keep("container_port_name", endpoint["port"]),
            *(_copy(source, target) for target, source in copied.items()),
        ],
    }


def discovered(pods: list[Object]) -> list[Object]:
    """What Prometheus finds in Kubernetes: each port of each container of each pod."""
    return [
        {
            "targets": [f"{pod['status']['podIP']}:{port['containerPort']}"],
            "labels": {
                "__meta_kubernetes_namespace": pod["metadata"]["namespace"],
                f"{POD}name": pod["metadata"]["name"],
                f"{POD}container_name": container["name"],
                f"{POD}container_port_name": port.get("name", ""),
                **{
                    f"{POD}label_{_safe(name)}": value
                    for name, value in pod["metadata"].get("labels", {}).items()
                },
            },
        }
        for pod in pods
        if pod["status"].get("podIP")
        for container in pod["spec"]["containers"]
        for port in container.get("ports", [])
    ]


def _keep(what: str, value: str) -> Object:
    return {"action": "keep", "source_labels": [f"{POD}{what}"], "regex": re.escape(value)}


def _copy(source: str, target: str) -> Object:
    return {"source_labels": [source], "target_label": target}


def _safe(name: str) -> str:
    """As Prometheus writes the names of labels."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", name)

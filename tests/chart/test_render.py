"""What the chart renders, and what values it refuses."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chart.conftest import CHART, Render

pytestmark = pytest.mark.cluster


def only(manifests: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    [found] = [one for one in manifests if one["kind"] == kind]
    return found


def test_lint_is_clean(helm: Path) -> None:
    done = subprocess.run([helm, "lint", "--strict", CHART], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_defaults_render_one_operator_for_all_namespaces(render: Render) -> None:
    assert Counter(one["kind"] for one in render()) == {
        "ClusterRole": 3,
        "ClusterRoleBinding": 1,
        "CustomResourceDefinition": 1,
        "Deployment": 1,
        "PodDisruptionBudget": 1,
        "Role": 1,
        "RoleBinding": 1,
        "ServiceAccount": 1,
    }


def test_replicas_prefer_nodes_of_their_own(render: Render) -> None:
    spec = only(render(), "Deployment")["spec"]
    [spread] = spec["template"]["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == (
        "kubernetes.io/hostname",
        "ScheduleAnyway",
    )
    assert spread["labelSelector"] == spec["selector"]


def test_namespaced_mode_grants_nothing_in_the_cluster(render: Render) -> None:
    manifests = render(watchNamespaces=["llm", "eval"], **{"crd.install": False})
    assert not [one for one in manifests if one["kind"].startswith("Cluster")]
    roles = {
        one["metadata"]["namespace"]: {verb for rule in one["rules"] for verb in rule["verbs"]}
        for one in manifests
        if one["kind"] == "Role"
    }
    assert roles["llm"] == roles["eval"] >= {"watch", "patch"}
    assert roles["pdserve-system"] == {"create", "get", "update", "patch"}  # of its own lease
    [container] = only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["args"][-3:] == [
        "--lease=pdserve-system/test-pdserve",
        "--namespace=llm",
        "--namespace=eval",
    ]


def test_no_rule_has_a_wildcard_or_lists_secrets(render: Render) -> None:
    for role in (one for one in render() if one["kind"] in ("Role", "ClusterRole")):
        for rule in role["rules"]:
            assert "*" not in [*rule["apiGroups"], *rule["resources"], *rule["verbs"]]
            assert "secrets" not in rule["resources"] or not {"list", "watch"} & {*rule["verbs"]}


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, "pdserve-operator:0.1.0"),
        ({"tag": "main"}, "pdserve-operator:main"),
        ({"digest": f"sha256:{'a' * 64}"}, f"pdserve-operator@sha256:{'a' * 64}"),
        ({"repository": "mirror.example/pd", "tag": "2"}, "mirror.example/pd:2"),
    ],
    ids=["default", "tag", "digest", "repository"],
)
def test_image(render: Render, image: dict[str, str], expected: str) -> None:
    manifests = render(**{f"image.{name}": value for name, value in image.items()})
    [container] = only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == expected


def test_probes_use_ports_that_exist(render: Render) -> None:
    [container] = only(render(), "Deployment")["spec"]["template"]["spec"]["containers"]
    ports = {port["name"] for port in container["ports"]}
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert {probe["port"] for probe in probes} <= ports


def test_one_replica_has_no_disruption_budget(render: Render) -> None:
    assert "PodDisruptionBudget" not in {one["kind"] for one in render(replicas=1)}


def test_pod_monitor_is_opt_in(render: Render) -> None:
    monitor = only(render(**{"podMonitor.enabled": True}), "PodMonitor")
    [port] = monitor["spec"]["podMetricsEndpoints"]
    assert port == {"port": "http", "path": "/metrics", "interval": "30s"}


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "removed"])
def test_crd_at_uninstall(render: Render, keep: bool) -> None:
    metadata = only(render(**{"crd.keep": keep}), "CustomResourceDefinition")["metadata"]
    assert ("helm.sh/resource-policy" in metadata.get("annotations", {})) is keep


@pytest.mark.parametrize(
    "values",
    [
        {"replicaCount": 2},
        {"image.tags": "x"},
        {"replicas": "two"},
        {"logLevel": "verbose"},
        {"watchNamespaces": ["Not_A_Name"]},
        {"image.digest": "latest"},
        {"podMonitor.interval": 30},
    ],
    ids=lambda values: next(iter(values)),
)
def test_wrong_values_are_refused(render: Render, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="don't meet the specifications of the schema"):
        render(**values)

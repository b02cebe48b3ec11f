"""The control plane itself: what the API-level tests rely on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.client import Client, CommandError, until

pytestmark = pytest.mark.cluster


def stateful_set(name: str, replicas: int) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": "main", "image": "none.invalid/none"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "serviceName": name,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }


def test_a_stateful_set_makes_pods_that_stay_pending(control_plane: Client, namespace: str) -> None:
    control_plane.apply(stateful_set("web", 2), namespace=namespace)
    until("two pods", lambda: len(control_plane.get("pods", "-n", namespace)) == 2)
    phases = {pod["status"]["phase"] for pod in control_plane.get("pods", "-n", namespace)}
    assert phases == {"Pending"}


def test_children_go_with_their_owner(control_plane: Client, namespace: str) -> None:
    control_plane.apply(stateful_set("web", 1), namespace=namespace)
    until("a pod", lambda: len(control_plane.get("pods", "-n", namespace)) == 1)
    control_plane.kubectl("delete", "statefulset", "web", "-n", namespace)
    until("no pods", lambda: not control_plane.get("pods", "-n", namespace))


def test_the_schema_is_enforced(control_plane: Client, namespace: str) -> None:
    wrong = stateful_set("web", 1)
    wrong["spec"]["replicas"] = "two"
    with pytest.raises(CommandError, match="replicas"):
        control_plane.apply(wrong, namespace=namespace)


@pytest.mark.usefixtures("helm")
def test_helm_installs_a_release(control_plane: Client, namespace: str, tmp_path: Any) -> None:
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: small\nversion: 0.1.0\n")
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "map.yaml").write_text(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: '{{ .Release.Name }}'}\n"
    )
    control_plane.helm("install", "one", str(tmp_path), "-n", namespace)
    assert control_plane.get("configmap", "one", "-n", namespace)["kind"] == "ConfigMap"

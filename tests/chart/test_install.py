"""The chart on a real API server: admission, permissions, upgrades."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.conftest import CHART
from tests.cluster.client import Client, CommandError, until

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("helm")]

CRD = "pddeployments.pdserve.io"
DEPLOYMENT = {
    "apiVersion": "pdserve.io/v1alpha1",
    "kind": "PDDeployment",
    "metadata": {"name": "kept"},
    "spec": {"model": {"source": "hf://some/model"}, "engine": {"image": "worker:1"}},
}


@pytest.fixture
def release(control_plane: Client, namespace: str) -> Any:
    """Installs or upgrades the release `pds` in the test's namespace; gone afterwards."""

    def install(chart: Path = CHART, **values: Any) -> str:
        flags = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
        control_plane.helm("upgrade", "--install", "pds", str(chart), "-n", namespace, *flags)
        return "system:serviceaccount:" + namespace + ":pds-pdserve"

    yield install
    control_plane.helm("uninstall", "pds", "-n", namespace, "--ignore-not-found")
    control_plane.kubectl("delete", "crd", CRD, "--ignore-not-found")


def may(client: Client, account: str, *question: str) -> bool:
    question = question if "-n" in question else (*question, "-n", "default")
    try:
        return client.kubectl("auth", "can-i", f"--as={account}", *question).strip() == "yes"
    except CommandError:  # it exits with 1 for "no"
        return False


def test_pods_pass_the_restricted_policy(
    control_plane: Client, namespace: str, release: Any
) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    control_plane.kubectl("label", "namespace", namespace, label)
    release(replicas=1)
    until("a pod", lambda: len(control_plane.get("pods", "-n", namespace)) == 1)


def test_the_operator_may_do_its_work_and_no_more(
    control_plane: Client, namespace: str, release: Any
) -> None:
    account = release()
    assert may(control_plane, account, "patch", "statefulsets.apps")
    assert may(control_plane, account, "patch", "pddeployments.pdserve.io", "--subresource=status")
    assert may(control_plane, account, "create", "leases.coordination.k8s.io", "-n", namespace)
    assert not may(control_plane, account, "list", "secrets")
    assert not may(control_plane, account, "get", "nodes")
    assert not may(control_plane, account, "create", "pods")
    assert not may(control_plane, account, "patch", "pddeployments.pdserve.io")


def test_namespaced_mode_ends_at_its_namespaces(
    control_plane: Client, namespace: str, release: Any
) -> None:
    account = release(watchNamespaces=[namespace])
    assert may(control_plane, account, "watch", "pddeployments.pdserve.io", "-n", namespace)
    assert not may(control_plane, account, "watch", "pddeployments.pdserve.io")


def test_upgrade_brings_the_new_crd_and_keeps_deployments(
    control_plane: Client, namespace: str, release: Any, chart_copy: Path
) -> None:
    file = chart_copy / "files" / "crd.yaml"
    crd = yaml.safe_load(file.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["properties"]["spec"]["properties"]["monitoring"]
    file.write_text(yaml.safe_dump(crd))
    release(chart_copy)  # release N-1 knows no spec.monitoring
    control_plane.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=10s")
    control_plane.apply(DEPLOYMENT, namespace=namespace)
    uid = control_plane.get("pdd", "kept", "-n", namespace)["metadata"]["uid"]

    release()
    path = "{.spec.versions[0].schema.openAPIV3Schema.properties.spec.properties.monitoring.type}"
    assert control_plane.kubectl("get", "crd", CRD, f"-o=jsonpath={path}") == "object"
    assert control_plane.get("pdd", "kept", "-n", namespace)["metadata"]["uid"] == uid


def test_uninstall_keeps_deployments_and_a_new_release_takes_them_over(
    control_plane: Client, namespace: str, release: Any
) -> None:
    release()
    control_plane.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=10s")
    control_plane.apply(DEPLOYMENT, namespace=namespace)
    control_plane.helm("uninstall", "pds", "-n", namespace)
    assert control_plane.get("pdd", "kept", "-n", namespace)
    release()
    assert control_plane.get("pdd", "kept", "-n", namespace)


@pytest.fixture
def other_namespace(control_plane: Client, namespace: str) -> Any:
    """One more."""
    name = f"{namespace}-other"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.helm("uninstall", "more", "-n", name, "--ignore-not-found")
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize("everywhere", [True, False], ids=["cluster", "namespaced"])
def test_a_second_operator_for_the_same_deployments_is_refused(
    control_plane: Client, namespace: str, other_namespace: str, release: Any, everywhere: bool
) -> None:
    def more(watched: list[str]) -> str:
        flags = ("--set=crd.install=false", f"--set-json=watchNamespaces={json.dumps(watched)}")
        where = ("-n", other_namespace)
        return control_plane.helm("upgrade", "--install", "more", str(CHART), *where, *flags)

    watched = [] if everywhere else [namespace]
    release(watchNamespaces=watched)
    with pytest.raises(CommandError, match=r"pdserve-operator.*exists and cannot be imported"):
        more(watched)
    assert control_plane.get("deployments", "-n", other_namespace) == []
    release(watchNamespaces=watched)  # an upgrade of the first is none
    if not everywhere:
        more([other_namespace])

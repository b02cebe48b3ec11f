"""What is made of whole resources, as files to read in a review.

`PYTHONPATH=operator python tests/operator/test_golden.py` writes them anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pd_operator.desired import Choices, desired_state
from pd_operator.rendering import crd_text, yaml_of
from pd_operator.resource import Resource

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests/operator/golden"
INPUTS = [
    *sorted(path for path in GOLDEN.glob("*.yaml") if not path.name.endswith(".out.yaml")),
    ROOT / "examples/pddeployment-minimal.yaml",
    ROOT / "examples/pddeployment-sglang.yaml",
]
CRD_COPIES = (ROOT / "crds/pddeployments.pdserve.io.yaml", ROOT / "charts/pdserve/files/crd.yaml")


def output(source: Path) -> Path:
    """The golden file of an input."""
    return GOLDEN / f"{source.stem}.out.yaml"


def manifests(source: Path) -> str:
    """All children of the resource in a file."""
    resource = Resource.parse(yaml.safe_load(source.read_text()))
    choices = Choices(optional_kinds=frozenset({"PodMonitor", "ScaledObject"}))
    return yaml_of(desired_state(resource, choices))


@pytest.mark.parametrize("source", INPUTS, ids=lambda path: path.stem)
def test_children_are_as_in_the_golden_file(source: Path) -> None:
    assert output(source).read_text() == manifests(source)


@pytest.mark.parametrize("source", INPUTS, ids=lambda path: path.stem)
def test_containers_have_no_more_rights_than_they_use(source: Path) -> None:
    engine = yaml.safe_load(source.read_text())["spec"]["engine"].get("type", "Pdserve")
    pods = [
        each["spec"]["template"]["spec"]
        for each in yaml.safe_load_all(manifests(source))
        if each["kind"] in ("StatefulSet", "Deployment")
    ]
    found = [each for pod in pods for each in pod["containers"] if engine == "Pdserve"]
    ours = [each for each in found if each["name"] in ("worker", "router")]  # no user's sidecar
    checks = [each for pod in pods for each in pod.get("initContainers", [])]
    assert ours or checks
    for security in (each["securityContext"] for each in (*ours, *checks)):
        if not security.get("privileged"):
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"]["drop"] == ["ALL"]


@pytest.mark.parametrize("path", CRD_COPIES, ids=lambda path: path.parts[-2])
def test_crd_file_is_what_the_classes_say(path: Path) -> None:
    assert path.read_text() == crd_text()


if __name__ == "__main__":
    for each in INPUTS:
        output(each).write_text(manifests(each))
    for copy in CRD_COPIES:
        copy.write_text(crd_text())

"""Every command of docs/quickstart-kubernetes.md, one after the other, as a newcomer types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import images
from tests.cluster.target import MODEL, Target
from tests.e2e.kubernetes.conftest import REPOSITORY

pytestmark = [pytest.mark.node, pytest.mark.model, pytest.mark.timeout(900)]

GUIDE = REPOSITORY / "docs" / "quickstart-kubernetes.md"
CLEANUP = "trap 'kill $(jobs -p) 2>/dev/null; true' EXIT"


def commands(target: Target) -> list[str]:
    """The lines after a prompt, with what this cluster has."""
    blocks = re.findall(r"```console\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines()]
    repository, _, tag = target.operator_image.rpartition(":")
    there, _, test = images.OPERATOR.reference.rpartition(":")
    return [
        line.replace(f"{there},image.tag={test}", f"{repository},image.tag={tag}") for line in lines
    ]


@pytest.fixture
def guide(target: Target, tmp_path: Path) -> Path:
    """A folder with what the guide uses of a checkout."""
    for name in ("charts", ".venv"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    (tmp_path / "examples").mkdir()
    example = (REPOSITORY / "examples/pddeployment-smollm2.yaml").read_text()
    example = example.replace(MODEL, target.model)
    example = example.replace(images.WORKER.reference, target.worker_image)
    (tmp_path / "examples/pddeployment-smollm2.yaml").write_text(example)
    return tmp_path


def test_the_quickstart_works_as_it_is_written(target: Target, guide: Path) -> None:
    client = target.client
    paths = (client.programs, client.helm_program.parent, Path(sys.executable).parent)
    environment = os.environ | {
        "KUBECONFIG": str(client.kubeconfig),
        "PATH": os.pathsep.join([*map(str, paths), os.environ["PATH"]]),
    }
    script = "\n".join(["set -ex", CLEANUP, *commands(target)])
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=guide,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    finally:
        client.kubectl("delete", "pdd", "smollm2", "--ignore-not-found")
        client.helm("uninstall", "pdserve", "-n", "pdserve-system", "--ignore-not-found")
    assert done.returncode == 0, done.stdout[-5000:]
    for told in ("1P1D/1P1D", '"content":', "is at work", 'release "pdserve" uninstalled'):
        assert told in done.stdout, done.stdout

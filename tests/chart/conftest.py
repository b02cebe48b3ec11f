"""The real helm, and the chart."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.client import Client
from tests.cluster.fixtures import running

CHART = Path(__file__).parents[2] / "charts" / "pdserve"

Render = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def render(helm: Path) -> Render:
    """Render the chart with `--set-json` values; the manifests as objects."""

    def run(**values: Any) -> list[dict[str, Any]]:
        flags = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
        where = ("test", str(CHART), "--namespace=pdserve-system")
        command = [str(helm), "template", *where, *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ValueError(done.stderr)
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    return run


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """One of these tests' own: they install and remove the definition that others use."""
    with running(tmp_path_factory.mktemp("control-plane")) as (_, client):
        yield client


@pytest.fixture
def chart_copy(tmp_path: Path) -> Path:
    """A copy of the chart that a test may change."""
    return Path(shutil.copytree(CHART, tmp_path / "pdserve"))

"""What tests of every part share: the small real model, and skips that say why."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from pd_worker.config import cache_dir

MODEL = "smollm2-135m"
pytest_plugins = ["tests.cluster.fixtures"]


def has_gpu() -> bool:
    """True where nvidia-smi finds a device (asking torch would import it for every run)."""
    found = shutil.which("nvidia-smi")
    return bool(found) and subprocess.run([found, "-L"], capture_output=True).returncode == 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, naming the reason."""
    reasons = {}
    if not (cache_dir() / "models" / MODEL / "config.json").is_file():
        reasons["model"] = f"{MODEL} is not fetched: run `pdserve fetch {MODEL}`"
    if not has_gpu():
        reasons["gpu"] = "no CUDA device"
    for item in items:
        for name, reason in reasons.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def small_model() -> Path:
    """The folder of the small real model; tests that ask for it are marked `model`."""
    return cache_dir() / "models" / MODEL

"""Clusters that several end-to-end tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.fleet import Up, up
from tests.e2e.models import save_tiny_llama


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small random Llama."""
    return save_tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Router, one prefill, one decode worker; prompts are cut into chunks of 32 tokens."""
    logs = tmp_path_factory.mktemp("pair")
    with up(tiny_model, logs, "--dtype", "float32", "--chunked-prefill-size", "32") as running:
        yield running


@pytest.fixture(scope="session")
def unified(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Router and one unified worker."""
    logs = tmp_path_factory.mktemp("unified")
    with up(tiny_model, logs, "--dtype", "float32", "--unified", "1") as running:
        yield running

"""Free memory is what both the machine and the container leave."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pd_worker.memory import free_memory


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 4 << 30),
        ({"memory.max": "max\n", "memory.current": "5\n"}, 4 << 30),
        ({"memory.max": "1000\n", "memory.current": "400\n"}, 600),
        ({"memory.max": "1000\n", "memory.current": "4000\n"}, 0),
        (
            {"memory/memory.limit_in_bytes": "900", "memory/memory.usage_in_bytes": "100"},
            800,
        ),
    ],
    ids=["none", "unlimited", "v2", "over", "v1"],
)
def test_the_tighter_limit_rules(
    files: dict[str, str], free: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "meminfo", "MemTotal: 9 kB\nMemAvailable:    4194304 kB\nHugePages_Free: 0\n")
    for name, text in files.items():
        write(tmp_path, name, text)
    monkeypatch.setattr(free_memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(free_memory, "_CGROUP", tmp_path)
    assert free_memory.free_nbytes(torch.device("cpu")) == free


def test_this_machine_has_memory() -> None:
    assert free_memory.free_nbytes(torch.device("cpu")) > 1 << 20

"""The number of threads that a container's CPU limit leaves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pd_worker.model.cores import usable_cores

BOUND = range(8)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        pytest.param({}, 8, id="no cgroup"),
        pytest.param({"cpu.max": "max 100000\n"}, 8, id="no limit"),
        pytest.param({"cpu.max": "350000 100000\n"}, 3, id="limit"),
        pytest.param({"cpu.max": "50000 100000\n"}, 1, id="less than one"),
        pytest.param({"cpu.max": "3200000 100000\n"}, 8, id="more than there are"),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2, id="v1"
        ),
        pytest.param(
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8, id="v1 none"
        ),
        pytest.param({"cpu.max": "what\n"}, 8, id="unreadable"),
    ],
)
def test_usable_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(BOUND))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert usable_cores(tmp_path) == cores

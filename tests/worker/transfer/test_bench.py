"""`pdserve bench transfer` measures every transport and writes its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pd_worker.bench.transfer import MEMCPY, TCP, Cell, TransferBench, main, table


def test_every_transport_is_measured_at_every_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    sizes = (4096, 65536)
    options = TransferBench(
        transports=("shm",),
        sizes=(*sizes, 2 << 20),
        total=1 << 20,
        repeat=1,
        json=str(out),
        plot="",
    )
    assert main(options) == 0
    cells = json.loads(out.read_text())["cells"]
    assert [(cell["transport"], cell["size"]) for cell in cells] == [
        (name, size) for name in (MEMCPY, TCP, "shm") for size in sizes
    ]
    assert all(cell["gb_per_s"] > 0 for cell in cells)
    assert "4 KiB" in capsys.readouterr().out


def test_the_table_has_a_row_for_each_size_and_a_column_for_each_transport() -> None:
    def cell(transport: str, size: int) -> Cell:
        return Cell(
            transport=transport,
            size=size,
            gb_per_s=size / 1e6,
            us_per_block=1.0,
            cpu_sender=1.0,
            cpu_receiver=0.0,
        )

    lines = table([cell(name, size) for name in ("a", "b") for size in (4096, 1 << 20)]).split("\n")
    assert lines[1].split() == ["a", "b"]
    assert lines[2].split() == ["4", "KiB", "0.00", "0.00"]
    assert lines[3].split() == ["1", "MiB", "1.05", "1.05"]

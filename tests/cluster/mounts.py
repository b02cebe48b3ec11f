"""Mounts under a folder: kubelet and containerd leave some when they are killed."""

from __future__ import annotations

import subprocess
from pathlib import Path


def release(folder: Path) -> None:
    """Unmount everything under `folder`, the deepest first; some are mounted more than once."""
    while found := _under(folder):
        for mount in found:
            subprocess.run(["umount", "--lazy", mount], check=True, capture_output=True)


def _under(folder: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [line.split()[1].encode().decode("unicode_escape") for line in lines]
    return sorted((one for one in points if one.startswith(f"{folder}/")), reverse=True)

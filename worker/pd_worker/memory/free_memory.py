"""How much memory a new KV pool may take: facts about this machine, read at start-up."""

from __future__ import annotations

from pathlib import Path

import torch

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_LIMITS = (
    ("memory.max", "memory.current"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
)


def default_fraction(device: torch.device) -> float:
    """Share of the free memory that the pool takes by default."""
    return 0.8 if device.type == "cuda" else 0.1


def free_nbytes(device: torch.device) -> int:
    """Free bytes on `device`; for the CPU also within this container's limit."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([_available(_MEMINFO.read_text()), *_cgroup_rooms(_CGROUP)])


def _available(meminfo: str) -> int:
    """MemAvailable of /proc/meminfo in bytes."""
    fields = dict(line.split(":", 1) for line in meminfo.splitlines() if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024


def _cgroup_rooms(root: Path) -> list[int]:
    """What is left below each memory limit of cgroup v2 and v1 that is set."""
    rooms = []
    for limit, usage in _LIMITS:
        try:
            most, now = (root / limit).read_text().strip(), (root / usage).read_text().strip()
        except OSError:
            continue
        if most != "max":
            rooms.append(max(0, int(most) - int(now)))
    return rooms

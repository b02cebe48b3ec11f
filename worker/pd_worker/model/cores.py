"""How many cores this process may use: those it is bound to, within its container's CPU limit."""

from __future__ import annotations

import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def usable_cores(cgroup: Path = CGROUP) -> int:
    """At least one. A limit of 3.5 cores counts as 3: threads that wait for a throttled one are
    slower than fewer threads."""
    bound = len(os.sched_getaffinity(0))
    limit = _limit(cgroup)
    return bound if limit is None else max(1, min(bound, int(limit)))


def _limit(cgroup: Path) -> float | None:
    """Cores of the CPU limit as cgroups tell it (version 2, else 1); None where there is none."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        files = (cgroup / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
        microseconds, per = (int(file.read_text()) for file in files)
    except (OSError, ValueError):
        return None
    return microseconds / per if microseconds > 0 else None

"""What processes use while something is measured, from /proc. One thread samples them."""

from __future__ import annotations

import bisect
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

INTERVAL_S = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU time that a process has used, in seconds; its ended children are left out."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mib(pid: int) -> tuple[float, float]:
    """Resident memory of a process, in MiB: now, and at most so far."""
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    now, peak = (int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, peak


class Meter:
    """CPU time of some processes over time; measures while its context is open."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._times: list[float] = []
        self._used: dict[str, list[float]] = {name: [] for name in pids}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Meter:
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def between(self, name: str, since: float, until: float) -> float:
        """CPU seconds in that time, both in seconds since the epoch."""
        return self._at(name, until) - self._at(name, since)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            self._sample()

    def _sample(self) -> None:
        self._times.append(time.time())
        for name, pid in self._pids.items():
            self._used[name].append(cpu_s(pid))

    def _at(self, name: str, moment: float) -> float:
        """By the last sample at or before that moment."""
        place = bisect.bisect_right(self._times, moment) - 1
        return self._used[name][max(place, 0)]

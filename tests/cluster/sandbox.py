"""What the node shares with the machine, kept apart: a network namespace and a cgroup of its own.

Both are named after the cluster, and every process of it, pods and their shims included, lives in
the cgroup. So `remove` finds all of it after any crash and takes nothing that belongs to others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_JOIN = 'echo $$ >"$0" && exec "$@"'


def _quiet(*command: str | Path, check: bool = True) -> None:
    subprocess.run(command, check=check, capture_output=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The network namespace and the cgroup called `name`."""

    name: str
    address: str
    """The node's address in the namespace."""

    @property
    def join(self) -> tuple[str, ...]:
        """Before a command: run it in the cgroup."""
        return ("sh", "-c", _JOIN, str(self._cgroups()[0] / "system" / "cgroup.procs"))

    @property
    def enter(self) -> tuple[str, ...]:
        """Before a command: run it in the network (`ip netns exec` would hide /sys/fs/cgroup)."""
        return ("nsenter", f"--net=/run/netns/{self.name}")

    def create(self) -> None:
        """Make both. Nothing outside can be reached from the namespace."""
        _quiet("ip", "netns", "add", self.name)
        for command in (
            "ip link set lo up",
            "ip link add node0 type veth peer name node1",
            f"ip addr add {self.address}/24 dev node0",
            "ip link set node0 up",
            "ip link set node1 up",
            "ip route add default dev node0",
        ):
            _quiet(*self.enter, *command.split())
        _quiet(*self.enter, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward")
        for folder in self._cgroups():
            folder.mkdir(exist_ok=True)
            if (folder / "cpuset.cpus").exists() and not _unified():
                _inherit_cpus(folder)
        (self._cgroups()[0] / "system").mkdir(exist_ok=True)

    def remove(self) -> None:
        """Remove both with every process in them; nothing happens where there is none."""
        for group in self._cgroups():
            folders = [*sorted(group.rglob("*/"), reverse=True), group]
            _end_all([folder for folder in folders if folder.is_dir()])
            for folder in folders:
                with contextlib.suppress(FileNotFoundError):
                    folder.rmdir()
        _quiet("ip", "netns", "delete", self.name, check=False)

    def _cgroups(self) -> list[Path]:
        """Version 2 has one folder, version 1 one for each controller."""
        if _unified():
            return [CGROUPS / self.name]
        return [each / self.name for each in sorted(CGROUPS.iterdir()) if each.is_dir()]


def _unified() -> bool:
    return (CGROUPS / "cgroup.controllers").exists()


def _inherit_cpus(folder: Path) -> None:
    """Version 1: a cpuset begins empty and takes no process until it is filled."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        (folder / name).write_text((folder.parent / name).read_text())


def _end_all(folders: list[Path], *, timeout_s: float = 10.0) -> None:
    """Kill until nothing is left in these cgroups."""
    end = time.monotonic() + timeout_s
    while pids := [pid for folder in folders for pid in _pids(folder)]:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > end:
            raise TimeoutError(f"processes {pids} of the cluster cannot be killed")
        time.sleep(0.05)


def _pids(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except FileNotFoundError:
        return []

"""What the node would share with the machine, kept apart: network, mounts and a cgroup of its own.

Every process of the cluster, pods and their shims included, lives in one cgroup. Their network and
their mounts end with the last of them. So `remove` works after any crash, and takes nothing that
belongs to others.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.processes import Processes

CGROUPS = Path("/sys/fs/cgroup")
SCRIPT = Path(__file__).parent / "config" / "sandbox.sh"
PLACES = (Path("/run/containerd"), Path("/var/lib/cni"))
"""Where the script mounts; a folder that was made for it goes again."""
_JOIN = 'echo $$ >"$0" && exec "$@"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """The cgroup called `name` and the namespaces of a process in it."""

    name: str
    state: Path
    address: str
    """The node's address; nothing outside can be reached from it."""

    @property
    def join(self) -> tuple[str, ...]:
        """Before a command: run it in the cgroup."""
        return ("sh", "-c", _JOIN, str(self._cgroups()[0] / "system" / "cgroup.procs"))

    @property
    def enter(self) -> tuple[str, ...]:
        """Before a command: run it in cgroup and namespaces."""
        target = str(self._processes.pid("sandbox"))
        return (*self.join, "nsenter", "--target", target, "--net", "--mount")

    def create(self) -> None:
        """Make them."""
        for folder in self._cgroups():
            folder.mkdir(exist_ok=True)
            if (folder / "cpuset.cpus").exists() and not _unified():
                _inherit_cpus(folder)
        (self._cgroups()[0] / "system").mkdir(exist_ok=True)
        ready = self.state / "sandbox-ready"
        command = ("unshare", "--net", "--mount", "--propagation=private", "sh", SCRIPT)
        self._processes.start("sandbox", *command, self.address, ready)
        self._processes.wait("sandbox", ready.exists)

    def remove(self) -> None:
        """End everything in it; nothing happens where there is nothing."""
        for group in self._cgroups():
            folders = [*sorted(group.rglob("*/"), reverse=True), group]
            _end_all([folder for folder in folders if folder.is_dir()])
            for folder in folders:
                with contextlib.suppress(FileNotFoundError):
                    folder.rmdir()
        for place in PLACES:
            with contextlib.suppress(OSError):  # somebody else's
                place.rmdir()

    @property
    def _processes(self) -> Processes:
        return Processes(folder=self.state, prefix=self.join)

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


def _end_all(folders: list[Path], *, timeout_s: float = 30.0) -> None:
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

"""Background processes of one test cluster: started by name, logged, stopped in reverse order.

Their pids lie in a folder, so that another process, or one after a crash, can stop them too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


class NotReadyError(Exception):
    """A part did not come up; the message holds the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """The processes whose pids and logs lie under `folder`."""

    folder: Path
    prefix: Sequence[str] = ()
    """Put before each command, such as nsenter or setpriv."""

    def start(self, name: str, *command: str | Path, prefix: Sequence[str] | None = None) -> None:
        """Start in the background, in a session of its own."""
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        before = self.prefix if prefix is None else prefix
        arguments = [str(part) for part in (*before, *command)]
        writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        pid = os.posix_spawnp(
            arguments[0],
            arguments,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log(name)), writing, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )
        self._pid_file(name).write_text(f"{pid} {_birth(pid)}")

    def log(self, name: str) -> Path:
        """Where its output goes."""
        return self.folder / "log" / name

    def alive(self, name: str) -> bool:
        """True while it runs (a pid that another program got since is not taken for it)."""
        return self.pid(name) is not None

    def pid(self, name: str) -> int | None:
        """None where it does not run."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            pid, birth = self._pid_file(name).read_text().split()
            return int(pid) if _birth(int(pid)) == birth else None
        return None

    def stop(self, name: str, *, grace_s: float = 10.0) -> None:
        """End it, at last by force; returns when it is gone."""
        pid = self.pid(name)
        if pid is not None:
            _end(pid, signal.SIGTERM)
            if not _within(grace_s, lambda: not self.alive(name)):
                _end(pid, signal.SIGKILL)
                _within(5, lambda: not self.alive(name))
        self._pid_file(name).unlink(missing_ok=True)

    def stop_all(self) -> None:
        """End all, the last started first."""
        files = self.folder.glob("log/*.pid")
        for file in sorted(files, key=lambda file: file.stat().st_mtime_ns, reverse=True):
            self.stop(file.stem)

    def wait(self, name: str, ready: Callable[[], bool], *, timeout_s: float = 300.0) -> None:
        """Block until `ready`; NotReadyError when it dies or takes too long."""
        if _within(timeout_s, lambda: ready() or not self.alive(name)) and self.alive(name):
            return
        end = "\n".join(self.log(name).read_text(errors="replace").splitlines()[-15:])
        raise NotReadyError(f"{name} is not ready; the end of {self.log(name)}:\n{end}")

    def _pid_file(self, name: str) -> Path:
        return self.log(name).with_name(f"{name}.pid")


def _birth(pid: int) -> str:
    """When it started, in the kernel's ticks; "gone" for none or a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "gone"
    return "gone" if state == "Z" else fields[18]


def _end(pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)


def _within(timeout_s: float, done: Callable[[], bool]) -> bool:
    """Poll until `done` or the time is up; True where it is done."""
    end = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True

"""One part of a local cluster as a process: started, watched, stopped, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable, Sequence

from pd_worker.errors import PdserveError
from pd_worker.local.plan import Part

TAIL_LINES = 15
_PR_SET_PDEATHSIG = 1


class PartDied(PdserveError):
    """A part of a local cluster ended by itself; the message ends with the end of its log."""


class PartProcess:
    """A started part: a process group of its own, its output in its log file.

    It gets SIGTERM when this process dies, however that happens.
    """

    def __init__(self, part: Part, process: asyncio.subprocess.Process) -> None:
        self.part, self._process = part, process

    @classmethod
    async def start(cls, part: Part, command: Sequence[str]) -> PartProcess:
        """Start `command` + the part's arguments; call it on the main thread."""
        with part.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                *part.args,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_prepare_child(part.cores, os.getpid()),
            )
        return cls(part, process)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def died(self) -> PartDied:
        """Wait until the process ends, and say how."""
        status = await self._process.wait()
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        log = self.part.log.read_text(errors="replace").splitlines()
        tail = "\n".join(f"    {line}" for line in log[-TAIL_LINES:])
        return PartDied(f"{self.part.name} ended with {how}; the end of {self.part.log}:\n{tail}")

    async def stop(self, timeout_s: float) -> None:
        """SIGTERM, then after `timeout_s` SIGKILL to its whole group; returns when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        with contextlib.suppress(TimeoutError):  # wait_for of 3.11 can lose a cancellation
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        """End whatever is left of its group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def own_command() -> tuple[str, ...]:
    """The `pdserve` command of this very installation."""
    return (sys.executable, "-u", "-m", "pd_worker.cli")


def _prepare_child(cores: Sequence[int], parent: int) -> Callable[[], None]:
    """What the child does between fork and exec; libc is looked up here, before the fork."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
        if cores:
            os.sched_setaffinity(0, cores)

    return prepare

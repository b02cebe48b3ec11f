"""Workers and routers that a test can kill, stop and start again at the same address."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from pd_worker.local.ports import free_ports

HOST = "127.0.0.1"
OPTIONS = ("--dtype", "float32", "--chunked-prefill-size", "16", "--drain-timeout-s", "20")
"""Of every worker here; with small chunks a long prompt takes long enough to be interfered with."""


@dataclass(slots=True, kw_only=True)
class Part:
    """One `pdserve` process in a process group of its own; `args` are its command line."""

    name: str
    args: tuple[str, ...]
    port: int
    log: Path
    bootstrap_port: int = 0
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it, which does not wait until it is ready."""
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "pd_worker.cli", *self.args]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=env | self.env, start_new_session=True
            )

    def signal(self, number: int) -> None:
        """To its first process, as a kubelet does."""
        assert self.process is not None
        self.process.send_signal(number)

    def signal_all(self, number: int) -> None:
        """To all its processes."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def kill(self, victim: str = "worker") -> None:
        """SIGKILL: all of it, or its scheduler process alone."""
        if victim == "worker":
            self.signal_all(signal.SIGKILL)
        else:
            self.scheduler().kill()

    def scheduler(self) -> psutil.Process:
        """Its scheduler process."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if "scheduler_process" in str(child.cmdline()))

    def wait(self, timeout_s: float) -> int:
        """The exit status."""
        assert self.process is not None
        return self.process.wait(timeout_s)

    def end(self) -> None:
        """Whatever state it is in: gone."""
        if self.process is not None:
            self.signal_all(signal.SIGKILL)
            self.process.wait()

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:]


def worker(role: str, model: Path, folder: Path, *args: str, name: str = "", **env: str) -> Part:
    """A worker that is not started yet."""
    port, bootstrap = free_ports(2)
    registry = ("--bootstrap-port", str(bootstrap)) if role == "prefill" else ()
    where = ("--model", str(model), "--host", HOST, "--port", str(port), *registry)
    return Part(
        name=name or role,
        args=("worker", "--role", role, *where, *OPTIONS, *args),
        port=port,
        bootstrap_port=bootstrap,
        log=folder / f"{name or role}.log",
        env=env,
    )


def router(prefills: list[Part], decodes: list[Part], folder: Path, **env: str) -> Part:
    """A router that gives a silent worker up after about four seconds."""
    (port,) = free_ports(1)
    patience = ("--health-interval-s", "0.5", "--health-timeout-s", "1")
    targets = [word for part in prefills for word in ("--prefill", part.url)]
    targets += [word for part in decodes for word in ("--decode", part.url)]
    return Part(
        name="router",
        args=("router", "--host", HOST, "--port", str(port), *patience, *targets),
        port=port,
        log=folder / f"router-{port}.log",
        env=env,
    )

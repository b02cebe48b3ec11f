"""Starts a worker: this process becomes the API process, a child the scheduler process.

    pdserve worker ── run_worker ──► API process (aiohttp; on prefill also the BootstrapServer)
                         └─ spawn ─► scheduler process (scheduler_process.py), which alone has torch

The two talk over ZMQ ipc sockets in a private folder; the child gets its config on standard input.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from pd_worker.api.server import Site, bound_socket, serve
from pd_worker.config import WorkerConfig, shared_secret
from pd_worker.errors import ConfigError
from pd_worker.launch.logs import set_up_logging
from pd_worker.model.store import resolve
from pd_worker.transfer.bootstrap import BootstrapServer

log = logging.getLogger(__name__)

SCHEDULER_MODULE = "pd_worker.launch.scheduler_process"
_WILDCARDS = ("0.0.0.0", "::", "")


def run_worker(config: WorkerConfig) -> int:
    """Run a worker until it is told to stop; returns the exit status.

    Raises ConfigError or ModelError for what can be told before anything is started.
    """
    set_up_logging(config.server.log_level, config.role)
    folder = resolve(config.model, lambda part, what: log.info("%3.0f %% %s", part * 100, what))
    config, sites = _listen(_resolved(config, folder))
    with tempfile.TemporaryDirectory(prefix="pdserve-") as run_dir:
        endpoints = (f"ipc://{run_dir}/to", f"ipc://{run_dir}/from")
        process = _start_scheduler(config, endpoints)
        try:
            return asyncio.run(
                serve(
                    config,
                    model_dir=folder,
                    to_scheduler=endpoints[0],
                    from_scheduler=endpoints[1],
                    exit_code=process.poll,
                    sites=sites,
                )
            )
        finally:
            process.kill()
            process.wait()


def _start_scheduler(config: WorkerConfig, endpoints: tuple[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", SCHEDULER_MODULE, *endpoints, str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(config))
    process.stdin.close()
    return process


def _resolved(config: WorkerConfig, folder: Path) -> WorkerConfig:
    """The config with what was found out: the model's folder, and where peers reach us."""
    host = config.disagg.advertise_host or reachable_host(config.server.host)
    return dataclasses.replace(
        config,
        model=dataclasses.replace(
            config.model, model=str(folder), served_model_name=config.model.name
        ),
        disagg=dataclasses.replace(config.disagg, advertise_host=host),
    )


def _listen(config: WorkerConfig) -> tuple[WorkerConfig, list[Site]]:
    """Bind the BootstrapServer's port on prefill; a port of 0 becomes the one that was free."""
    if config.role != "prefill":
        return config, []
    disagg = config.disagg
    try:
        bound = bound_socket(config.server.host, disagg.bootstrap_port)
    except OSError as error:
        problem = f"cannot listen on {config.server.host}:{disagg.bootstrap_port}: {error}"
        raise ConfigError("--bootstrap-port", problem, "choose another port, or 0") from error
    port = bound.getsockname()[1]
    server = BootstrapServer(secret=shared_secret())
    config = dataclasses.replace(config, disagg=dataclasses.replace(disagg, bootstrap_port=port))
    return config, [Site(app=server.app(), socket=bound)]


def reachable_host(host: str) -> str:
    """An address at which others reach what listens on `host`: for a wildcard that of the default
    route, or loopback where there is none."""
    if host not in _WILDCARDS:
        return host
    family, probe, loopback = (
        (socket.AF_INET6, "2001:db8::1", "::1")
        if host == "::"
        else (socket.AF_INET, "192.0.2.1", "127.0.0.1")
    )
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((probe, 9))  # a datagram socket sends nothing on connect
        except OSError:
            return loopback
        return str(sock.getsockname()[0])

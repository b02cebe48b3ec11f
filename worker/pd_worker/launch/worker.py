"""Starts a worker: this process becomes the API process, a child the scheduler process.

    pdserve worker ── run_worker ──► API process (aiohttp; on prefill also the BootstrapServer)
                         └─ spawn ─► scheduler process (assembly.py: model, memory, event loop)

The two talk over ZMQ ipc sockets in a private folder. The child ignores terminal signals: it ends
by the API's Shutdown message, and by SIGKILL should the parent die first.
"""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import faulthandler
import logging
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

from aiohttp import web

from pd_worker.api.server import Site, bound_socket, serve
from pd_worker.config import WorkerConfig, shared_secret
from pd_worker.errors import ConfigError, PdserveError
from pd_worker.launch.assembly import Assembly, assemble
from pd_worker.messages import LoadProgress, SchedulerFailed
from pd_worker.model.store import resolve
from pd_worker.scheduler.channel import Channel
from pd_worker.scheduler.heartbeat import HeartbeatThread
from pd_worker.transfer.bootstrap import make_app

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_WILDCARDS = ("0.0.0.0", "::", "")


def run_worker(config: WorkerConfig) -> int:
    """Run a worker until it is told to stop; returns the exit status.

    Raises ConfigError or ModelError for what can be told before anything is started.
    """
    _set_up_logging(config.server.log_level, config.role)
    folder = resolve(config.model, lambda part, what: log.info("%3.0f %% %s", part * 100, what))
    config, sites = _listen(_resolved(config, folder))
    with tempfile.TemporaryDirectory(prefix="pdserve-") as run_dir:
        endpoints = (f"ipc://{run_dir}/to", f"ipc://{run_dir}/from")
        spawn = multiprocessing.get_context("spawn")
        process = spawn.Process(
            target=run_scheduler, args=(config, *endpoints, os.getpid()), name="pdserve-scheduler"
        )
        process.start()
        try:
            return asyncio.run(
                serve(
                    config,
                    model_dir=folder,
                    to_scheduler=endpoints[0],
                    from_scheduler=endpoints[1],
                    exit_code=lambda: process.exitcode,
                    sites=sites,
                )
            )
        finally:
            process.kill()
            process.join()


def run_scheduler(
    config: WorkerConfig, to_scheduler: str, from_scheduler: str, parent: int
) -> None:
    """The scheduler process: load, say so, loop, shut down. Exits 1 where it cannot go on."""
    _follow_parent(parent)
    _set_up_logging(config.server.log_level, f"{config.role} scheduler")
    faulthandler.enable()
    channel = Channel(to_scheduler, from_scheduler)
    try:
        built = assemble(config, channel, lambda part, what: channel.send(LoadProgress(part, what)))
    except (PdserveError, OSError, MemoryError) as error:
        channel.send(SchedulerFailed(str(error)))
        channel.close()
        sys.exit(1)
    try:
        _loop(config, built, channel, from_scheduler)
    except Exception as error:
        log.exception("the event loop broke: %r", built.scheduler)
        channel.send(SchedulerFailed(f"the event loop broke: {error!r}"))
        channel.close()
        sys.exit(1)


def _loop(config: WorkerConfig, built: Assembly, channel: Channel, from_scheduler: str) -> None:
    heartbeat = HeartbeatThread(
        from_scheduler,
        built.scheduler,
        registered=built.registered,
        log_interval_s=config.scheduler.log_interval_s,
    )
    channel.send(built.ready)
    heartbeat.start()
    if config.scheduler.overlap:
        built.scheduler.event_loop_overlap()
    else:
        built.scheduler.event_loop_normal()
    heartbeat.stop()
    built.close()
    channel.close()


def _follow_parent(parent: int) -> None:
    """Die with the parent, and leave the terminal's signals to it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


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
    app: web.Application = make_app(shared_secret())
    config = dataclasses.replace(config, disagg=dataclasses.replace(disagg, bootstrap_port=port))
    return config, [Site(app=app, socket=bound)]


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


def _set_up_logging(level: str, who: str) -> None:
    logging.basicConfig(
        level=level.upper(),
        format=f"%(asctime)s %(levelname)s [{who}] %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )

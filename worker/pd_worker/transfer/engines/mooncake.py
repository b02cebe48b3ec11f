"""Transfer through Mooncake's TransferEngine, over TCP or RDMA.

What was found by measuring decides how the library is driven here:

- It queues a limited number of requests per peer, and a peer whose queue overflowed once never
  works again. So at most WINDOW requests are outstanding and the library's own bound is raised.
- Its blocking calls spin on a core; submitting and polling with a short sleep is faster and not.
- After a failed write the library's state about the peer cannot be trusted, so `reset` builds a
  new instance. Writes in progress to other peers finish on the old one.
"""

from __future__ import annotations

import importlib
import ipaddress
import json
import os
import threading
import time
from collections import deque
from typing import Any, Literal

from pd_worker.errors import BackendUnavailable, TransferError
from pd_worker.transfer.blocks import Addresses
from pd_worker.transfer.engine import TransferEngine

WINDOW = 256
POLL_S = 0.0003
WRITE_TIMEOUT_S = 10
STALL_S = 3.0 * WRITE_TIMEOUT_S
"""Longer than every timeout of the library: then it has lost the request."""


def _settings(host: str) -> dict[str, str]:
    """Environment of the library, which reads it once, when it is loaded."""
    settings = {
        "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
        "MC_TCP_SLICE_SIZE": str(1 << 20),
        "MC_TCP_STATUS_TIMEOUT_SEC": str(WRITE_TIMEOUT_S),
        "MC_TCP_PROGRESS_TIMEOUT_SEC": str(WRITE_TIMEOUT_S),
        "MC_TRANSFER_TIMEOUT": str(WRITE_TIMEOUT_S),
        "MC_LOG_LEVEL": "ERROR",
    }
    if ":" in host:
        settings["MC_USE_IPV6"] = "1"
    return settings


def _library(host: str) -> Any:
    for name, value in _settings(host).items():
        os.environ.setdefault(name, value)
    try:
        return importlib.import_module("mooncake.engine")
    except ImportError as error:
        raise BackendUnavailable(f"mooncake: cannot be loaded: {error}") from error


class MooncakeEngine(TransferEngine):
    """One-sided writes by Mooncake; every write is acknowledged by the peer's engine."""

    name = "mooncake"
    settle_s = float(WRITE_TIMEOUT_S)

    def __init__(
        self, host: str, *, protocol: Literal["tcp", "rdma"] = "tcp", device: str = ""
    ) -> None:
        """`host`: the address that peers connect to. Raises BackendUnavailable where the library
        cannot be loaded or started, or where rdma has no device."""
        self._host, self._protocol, self._device = host, protocol, device
        self._module = _library(host)
        self._lock = threading.Lock()
        self._regions: dict[int, int] = {}
        self._distrusted: Any = None
        self._engine = self._start()
        self._session_id = f"{_bracketed(host)}:{self._engine.get_rpc_port()}"

    def _start(self) -> Any:
        engine = self._module.TransferEngine()
        if engine.initialize(self._host, "P2PHANDSHAKE", self._protocol, self._device):
            raise BackendUnavailable(f"mooncake: cannot start on {self._host}")
        if self._protocol == "rdma" and not _has_rdma(engine.get_local_topology()):
            # The library would go on over TCP and say nothing.
            raise BackendUnavailable("mooncake: rdma was asked for and there is no RDMA device")
        return engine

    @property
    def session_id(self) -> str:
        return self._session_id

    def register(self, addr: int, nbytes: int) -> None:
        with self._lock:
            if self._engine.register_memory(addr, nbytes):
                raise TransferError(f"mooncake: cannot register {nbytes} bytes")
            self._regions[addr] = nbytes

    def unregister(self, addr: int) -> None:
        with self._lock:
            if self._regions.pop(addr, None) is None or self._engine.unregister_memory(addr):
                raise TransferError("mooncake: no such region")

    def write(
        self, session_id: str, src_addrs: Addresses, dst_addrs: Addresses, lengths: Addresses
    ) -> None:
        with self._lock:
            engine = self._engine
        if engine is None:
            raise TransferError("mooncake: closed")
        runs = zip(src_addrs.tolist(), dst_addrs.tolist(), lengths.tolist(), strict=True)
        try:
            _write_all(engine, session_id, deque(runs))
        except TransferError:
            with self._lock:
                self._distrusted = engine
            raise

    def reset(self, session_id: str) -> None:
        with self._lock:
            if self._engine is None or self._engine is not self._distrusted:
                return
            # Only a writer is reset, and nobody writes to a writer: its session id may change.
            self._engine, self._distrusted = self._start(), None
            for addr, nbytes in self._regions.items():
                self._engine.register_memory(addr, nbytes)

    def close(self) -> None:
        with self._lock:
            if self._engine is not None:
                for addr in self._regions:
                    self._engine.unregister_memory(addr)
            self._engine = self._distrusted = None


def _write_all(engine: Any, session_id: str, runs: deque[tuple[int, int, int]]) -> None:
    """Submit all runs, never more than WINDOW at a time, and wait until each has ended."""
    pending: deque[int] = deque()
    failed = ""
    while pending or (runs and not failed):
        while runs and not failed and len(pending) < WINDOW:
            batch = engine.transfer_submit_write(session_id, *runs.popleft())
            if batch <= 0:
                failed = f"mooncake: {session_id} cannot be reached"
            else:
                pending.append(batch)
        if pending and _ended(engine, pending.popleft()) < 0:
            failed = "mooncake: the peer refused a write or does not answer"
    if failed:
        raise TransferError(failed)


def _ended(engine: Any, batch: int) -> int:
    """Wait for one request: 1 done, negative failed. Raises TransferError if it is lost."""
    give_up = time.monotonic() + STALL_S
    while not (status := engine.transfer_check_status(batch)):
        if time.monotonic() > give_up:
            raise TransferError("mooncake: a write neither ends nor fails")
        time.sleep(POLL_S)
    return int(status)


def _bracketed(host: str) -> str:
    try:
        return f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        return host


def _has_rdma(topology: str) -> bool:
    """Whether any memory of this machine has a network device near it."""
    return any(any(devices) for devices in json.loads(topology).values())

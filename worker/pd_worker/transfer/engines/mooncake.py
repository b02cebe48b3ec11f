"""Transfer through Mooncake's TransferEngine, over TCP or RDMA.

What was found by measuring decides how the library is driven here:

- It queues a limited number of requests per peer, and a peer whose queue overflowed once never
  works again. So at most WINDOW requests are outstanding and the library's own bound is raised.
- Its blocking calls spin on a core; submitting and polling with a short sleep is faster and not.
- The first write to a peer is a handshake under a lock of the instance: a stopped peer would hold
  up the writes to all others for a minute. So every write in progress has an instance to itself.
  (Not over RDMA, where registering the memory again would be too dear.)
- Destroying an instance takes up to a second with the GIL held. So none ever is; they are reused.
"""

from __future__ import annotations

import ctypes
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
    renewable = True

    def __init__(
        self, host: str, *, protocol: Literal["tcp", "rdma"] = "tcp", device: str = ""
    ) -> None:
        """`host`: the address that peers connect to. Raises BackendUnavailable where the library
        cannot be loaded or started, or where rdma has no device."""
        self._host, self._protocol, self._device = host, protocol, device
        self._module = _library(host)
        self._lock = threading.Lock()
        self._regions: dict[int, int] = {}
        self._idle: list[tuple[str, Any]] = []  # session written to last, instance
        self._closed = False
        self._target = self._start()

    def _start(self) -> Any:
        instance = self._module.TransferEngine()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(instance))  # never destroyed, see above
        if instance.initialize(self._host, "P2PHANDSHAKE", self._protocol, self._device):
            raise BackendUnavailable(f"mooncake: cannot start on {self._host}")
        if self._protocol == "rdma" and not _has_rdma(instance.get_local_topology()):
            # The library would go on over TCP and say nothing.
            raise BackendUnavailable("mooncake: rdma was asked for and there is no RDMA device")
        return instance

    @property
    def session_id(self) -> str:
        return f"{_bracketed(self._host)}:{self._target.get_rpc_port()}"

    def register(self, addr: int, nbytes: int) -> None:
        with self._lock:
            _register(self._target, addr, nbytes)
            self._regions[addr] = nbytes

    def unregister(self, addr: int) -> None:
        with self._lock:
            if self._regions.pop(addr, None) is None:
                raise TransferError("mooncake: no such region")
            for instance in (self._target, *(idle for _, idle in self._idle)):
                instance.unregister_memory(addr)

    def write(
        self, session_id: str, src_addrs: Addresses, dst_addrs: Addresses, lengths: Addresses
    ) -> None:
        runs = deque(zip(src_addrs.tolist(), dst_addrs.tolist(), lengths.tolist(), strict=True))
        if self._protocol == "rdma":
            return _write_all(self._target, session_id, runs)
        instance = self._borrow(session_id)
        try:
            _write_all(instance, session_id, runs)
        except _Lost:
            raise  # it may still touch the memory: it is not used again
        except TransferError:
            self._give_back("", instance)
            raise
        self._give_back(session_id, instance)

    def _borrow(self, session_id: str) -> Any:
        """An instance that nobody uses, best one that knows the peer."""
        with self._lock:
            if self._closed:
                raise TransferError("mooncake: closed")
            if self._idle:
                known = [i for i, (last, _) in enumerate(self._idle) if last == session_id]
                return self._idle.pop(known[0] if known else 0)[1]
            instance = self._start()
            for addr, nbytes in self._regions.items():
                _register(instance, addr, nbytes)
            return instance

    def _give_back(self, session_id: str, instance: Any) -> None:
        with self._lock:
            self._idle.append((session_id, instance))

    def renew(self) -> None:
        fresh = self._start()
        with self._lock:
            old, self._target = self._target, fresh
            for addr, nbytes in self._regions.items():
                old.unregister_memory(addr)
                _register(fresh, addr, nbytes)

    def close(self) -> None:
        self._closed = True
        for addr in list(self._regions):
            self.unregister(addr)


class _Lost(TransferError):
    """The library has lost a request."""


def _register(instance: Any, addr: int, nbytes: int) -> None:
    if instance.register_memory(addr, nbytes):
        raise TransferError(f"mooncake: cannot register {nbytes} bytes")


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
    """Wait for one request: 1 done, negative failed. Raises _Lost if it does not end."""
    give_up = time.monotonic() + STALL_S
    while not (status := engine.transfer_check_status(batch)):
        if time.monotonic() > give_up:
            raise _Lost("mooncake: a write neither ends nor fails")
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

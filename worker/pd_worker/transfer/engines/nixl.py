"""Transfer through NIXL (UCX). An extra: `pip install pdserve[nixl]`.

A session id is the agent's metadata: its name, addresses and the keys of what it has registered. So
it changes with every registration, and a peer that holds an old one cannot write to new regions.
NIXL's progress thread keeps a core busy, also when idle. Over TCP and process memory (CMA) UCX does
not check keys: there `unregister` refuses peers that come later, not those that know the region.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import importlib
import threading
import time
import uuid
from typing import Any

import numpy as np

from pd_worker.errors import BackendUnavailable, TransferError
from pd_worker.transfer.blocks import Addresses
from pd_worker.transfer.engine import TransferEngine

POLL_S = 0.0003
WRITE_TIMEOUT_S = 30.0


class NixlEngine(TransferEngine):
    """Writes of host memory by NIXL's UCX backend."""

    name = "nixl"
    settle_s = WRITE_TIMEOUT_S

    def __init__(self, host: str = "") -> None:
        """`host` is not used: UCX chooses its own addresses. Raises BackendUnavailable where the
        package is missing or cannot start."""
        try:
            api = importlib.import_module("nixl._api")
            self._agent: Any = api.nixl_agent(
                f"pdserve-{uuid.uuid4().hex}", api.nixl_agent_config(backends=["UCX"])
            )
        except Exception as error:  # whatever a missing or broken library raises
            raise BackendUnavailable(f"nixl: cannot be loaded: {error}") from error
        self._lock = threading.Lock()
        self._regions: dict[int, Any] = {}
        self._peers: dict[str, str] = {}

    @property
    def session_id(self) -> str:
        return base64.b64encode(self._agent.get_agent_metadata()).decode()

    def register(self, addr: int, nbytes: int) -> None:
        with self._lock:
            self._regions[addr] = self._call("register_memory", [(addr, nbytes, 0, "")], "DRAM")

    def unregister(self, addr: int) -> None:
        with self._lock:
            region = self._regions.pop(addr, None)
            if region is None:
                raise TransferError("nixl: no such region")
            self._call("deregister_memory", region)

    def write(
        self, session_id: str, src_addrs: Addresses, dst_addrs: Addresses, lengths: Addresses
    ) -> None:
        peer = self._peer(session_id)
        device = np.zeros_like(lengths)
        local, remote = (
            self._call("get_xfer_descs", np.stack((addrs, lengths, device), axis=1), "DRAM")
            for addrs in (src_addrs, dst_addrs)
        )
        handle = self._call("initialize_xfer", "WRITE", local, remote, peer)
        try:
            self._finish(handle)
        finally:
            self._call("release_xfer_handle", handle)

    def _finish(self, handle: Any) -> None:
        state, until = self._call("transfer", handle), time.monotonic() + WRITE_TIMEOUT_S
        while state == "PROC":
            if time.monotonic() > until:
                raise TransferError(f"nixl: no end of a write within {WRITE_TIMEOUT_S:g} s")
            time.sleep(POLL_S)
            state = self._call("check_xfer_state", handle)
        if state != "DONE":
            raise TransferError(f"nixl: a write ended in state {state}")

    def reset(self, session_id: str) -> None:
        with self._lock:
            peer = self._peers.pop(session_id, None)
            if peer is not None:
                with contextlib.suppress(TransferError):  # it may be gone already
                    self._call("remove_remote_agent", peer)

    def close(self) -> None:
        for addr in list(self._regions):
            self.unregister(addr)

    def _peer(self, session_id: str) -> str:
        with self._lock:
            if session_id not in self._peers:
                try:
                    metadata = base64.b64decode(session_id, validate=True)
                except binascii.Error as error:
                    raise TransferError("not a nixl session id") from error
                name = self._call("add_remote_agent", metadata)
                self._peers[session_id] = name if isinstance(name, str) else name.decode()
            return self._peers[session_id]

    def _call(self, method: str, *args: Any) -> Any:
        try:
            return getattr(self._agent, method)(*args)
        except Exception as error:  # NIXL raises classes of its own binding
            raise TransferError(f"nixl: {method}: {error}") from error

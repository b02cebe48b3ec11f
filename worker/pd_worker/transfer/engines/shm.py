"""Transfer through shared memory between workers on one host.

Decode's pools lie in memory that `allocate` returned; prefill maps it and a write is a memcpy into
it, without any work of decode's CPU. A session id holds a random nonce that is also in the shared
memory, so two workers that can reach each other's memory know it, whatever their host names say.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pd_worker.errors import TransferError
from pd_worker.transfer.blocks import Addresses
from pd_worker.transfer.engine import TransferEngine
from pd_worker.transfer.engines.segments import OwnSegments, PeerSegments, sweep

DEFAULT_DIRECTORY = "/dev/shm"


class ShmEngine(TransferEngine):
    """Writes by memcpy. Constructing it removes the files of workers that died."""

    name = "shm"
    registers_source = False

    def __init__(self, directory: str | Path = DEFAULT_DIRECTORY) -> None:
        """Raises BackendUnavailable where the directory cannot be written."""
        self._directory = Path(directory)
        sweep(self._directory)
        self._own = OwnSegments(self._directory)
        self._lock = threading.Lock()
        self._peers: dict[str, PeerSegments] = {}

    @property
    def session_id(self) -> str:
        return self._own.session_id

    def allocate(self, nbytes: int) -> memoryview:
        """Zeroed, page-aligned memory that can be registered; it lives as long as it is used.

        Raises BackendUnavailable where there is not enough shared memory.
        """
        return self._own.allocate(nbytes)

    def register(self, addr: int, nbytes: int) -> None:
        with self._lock:
            self._own.open(addr, nbytes)

    def unregister(self, addr: int) -> None:
        with self._lock:
            self._own.shut(addr)

    def write(
        self, session_id: str, src_addrs: Addresses, dst_addrs: Addresses, lengths: Addresses
    ) -> None:
        peer = self._peer(session_id)
        for src, dst, nbytes in _checked(peer, src_addrs, dst_addrs, lengths):
            ctypes.memmove(dst, src, nbytes)  # without the GIL

    def reachable(self, session_id: str) -> bool:
        try:
            return not self._peer(session_id).gone
        except TransferError:
            return False

    def gone(self, session_id: str) -> bool:
        with self._lock:
            peer = self._peers.get(session_id)
        return peer is not None and peer.gone

    def reset(self, session_id: str) -> None:
        with self._lock:
            self._peers.pop(session_id, None)

    def close(self) -> None:
        with self._lock:
            self._peers.clear()
            self._own.close()

    def _peer(self, session_id: str) -> PeerSegments:
        with self._lock:
            peer = self._peers.get(session_id)
            if peer is None:
                peer = self._peers[session_id] = PeerSegments(self._directory, session_id)
            return peer


def _checked(
    peer: PeerSegments, src_addrs: Addresses, dst_addrs: Addresses, lengths: Addresses
) -> Iterator[tuple[int, int, int]]:
    """Source, destination in this process, length; raises before the first if any is refused."""
    target: Addresses = np.full(dst_addrs.shape, -1, dtype=np.int64)
    for addr, nbytes, here in peer.regions():
        offset = dst_addrs - addr
        inside = (offset >= 0) & (lengths > 0) & (offset <= nbytes - lengths)
        target[inside] = offset[inside] + here
    if (target < 0).any():
        raise TransferError("shm: an address is outside what the peer has registered")
    return zip(src_addrs.tolist(), target.tolist(), lengths.tolist(), strict=True)

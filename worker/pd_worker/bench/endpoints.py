"""The other process of `pdserve bench transfer`, and how to talk to it.

It waits for "cpu" (answered with the CPU seconds it has used) and "stop" on its pipe.
"""

from __future__ import annotations

import socket
import struct
import time
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from pd_worker.errors import BackendUnavailable
from pd_worker.transfer.engine import TransferEngine
from pd_worker.transfer.engines.mooncake import MooncakeEngine
from pd_worker.transfer.engines.nixl import NixlEngine
from pd_worker.transfer.engines.shm import ShmEngine

Bytes = npt.NDArray[np.uint8]
_HEADER = struct.Struct("<QQ")
_ANSWER = struct.Struct("<d")


def make_engine(name: str, host: str) -> TransferEngine:
    """An engine by name; raises BackendUnavailable."""
    if name == "shm":
        return ShmEngine()
    return MooncakeEngine(host) if name == "mooncake" else NixlEngine(host)


def serve(pipe: Connection, name: str, host: str, nbytes: int) -> None:
    """Open memory to writes; sends (session id, address), or the error, first."""
    try:
        engine = make_engine(name, host)
    except BackendUnavailable as error:
        pipe.send(error)
        pipe.recv()
        return
    memory = engine.allocate(nbytes) if isinstance(engine, ShmEngine) else bytearray(nbytes)
    region = np.frombuffer(memory, np.uint8)
    region[:] = 0
    engine.register(region.ctypes.data, nbytes)
    pipe.send((engine.session_id, region.ctypes.data))
    while pipe.recv() == "cpu":
        pipe.send(time.process_time())
    engine.close()


def receive_tcp(pipe: Connection, host: str) -> None:
    """Take messages from one TCP connection into memory; sends the address first.

    A message is its length and the size of a block, then the bytes, read block by block. It is
    answered with the CPU seconds used so far.
    """
    with socket.create_server((host, 0), family=_family(host)) as server:
        pipe.send(server.getsockname()[:2])
        connection, _ = server.accept()
        with connection:
            _receive(connection)
    pipe.recv()


def _receive(connection: socket.socket) -> None:
    memory = memoryview(bytearray(64 << 20))
    while header := connection.recv(_HEADER.size, socket.MSG_WAITALL):
        left, size = _HEADER.unpack(header)
        while left:
            left -= connection.recv_into(memory[: min(left, size, len(memory))])
        connection.sendall(_ANSWER.pack(time.process_time()))


class TcpSender:
    """The sending end of `receive_tcp`."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.remote_cpu = 0.0
        """CPU seconds of the receiver after the last message."""

    def send(self, data: memoryview, size: int) -> None:
        """Send `data` in blocks and wait until all of it was read."""
        self._socket.sendall(_HEADER.pack(len(data), size))
        for start in range(0, len(data), size):
            self._socket.sendall(data[start : start + size])
        answer = self._socket.recv(_ANSWER.size, socket.MSG_WAITALL)
        self.remote_cpu = _ANSWER.unpack(answer)[0]

    def close(self) -> None:
        """Let the receiver end."""
        self._socket.close()


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET

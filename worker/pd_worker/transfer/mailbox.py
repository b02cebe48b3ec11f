"""The ZMQ sockets of one process: one PULL socket that peers send to, one PUSH socket a peer.

Used on the control thread only. Nothing here blocks: a full outbound queue drops the message,
which the protocol's repetitions make good.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

import zmq
import zmq.asyncio
from zmq.auth.asyncio import AsyncioAuthenticator

from pd_worker.errors import TransferError
from pd_worker.transfer.keys import CurvePair
from pd_worker.transfer.wire import MAX_FRAME_NBYTES

MAX_PEERS = 1024
QUEUED_MESSAGES = 1024


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a control socket listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def resolve(host: str) -> str:
    """The first numeric address of a host; raises TransferError where there is none."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise TransferError(f"advertise host {host!r} cannot be resolved: {error}") from error
    address = str(found[0][4][0])
    if ipaddress.ip_address(address).is_unspecified:
        raise TransferError(f"advertise host {host!r} is a wildcard; give an address peers reach")
    return address


class Mailbox:
    """Sockets of this process; must be built on a running event loop."""

    def __init__(self, host: str, pair: CurvePair | None) -> None:
        """Bind a random port of the numeric address `host`; raises TransferError if not ours."""
        self._pair = pair
        self._context = zmq.asyncio.Context()
        self._authenticator = self._authenticate()
        self._inbox = self._context.socket(zmq.PULL)
        self._inbox.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_NBYTES)
        if pair is not None:
            self._inbox.setsockopt(zmq.CURVE_SERVER, 1)
            self._inbox.setsockopt(zmq.CURVE_SECRETKEY, pair.private)
        self._outboxes: dict[Endpoint, zmq.Socket[bytes]] = {}
        self._plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context(self._context)
        self.endpoint = self._bind(host)

    def _authenticate(self) -> AsyncioAuthenticator | None:
        if self._pair is None:
            return None
        authenticator = AsyncioAuthenticator(self._context)
        authenticator.start()
        authenticator.configure_curve_callback("*", _OnlyKey(self._pair.public))
        return authenticator

    def _bind(self, host: str) -> Endpoint:
        self._inbox.setsockopt(zmq.IPV6, int(":" in host))
        try:
            self._inbox.bind(f"tcp://{_bracketed(host)}:*")
        except zmq.ZMQError as error:
            self.close()
            raise TransferError(
                f"advertise host {host} is not an address of this machine: {error}"
            ) from error
        bound = self._inbox.getsockopt_string(zmq.LAST_ENDPOINT)
        return Endpoint(host, int(bound.rpartition(":")[2]))

    async def receive(self) -> list[bytes]:
        """The next message's frames."""
        return await self._inbox.recv_multipart()

    def send(self, peer: Endpoint, frame: bytes) -> bool:
        """Queue one message; False where it had to be dropped."""
        outbox = self._outboxes.get(peer)
        try:
            if outbox is None:
                outbox = self._connect(peer)
            outbox.send(frame, zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True

    def _connect(self, peer: Endpoint) -> zmq.Socket[bytes]:
        if len(self._outboxes) >= MAX_PEERS:
            raise zmq.ZMQError(zmq.EAGAIN)
        outbox = self._plain.socket(zmq.PUSH)
        outbox.setsockopt(zmq.LINGER, 0)
        outbox.setsockopt(zmq.SNDHWM, QUEUED_MESSAGES)
        outbox.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        outbox.setsockopt(zmq.IPV6, int(":" in peer.host))
        if self._pair is not None:
            outbox.setsockopt(zmq.CURVE_SERVERKEY, self._pair.public)
            outbox.setsockopt(zmq.CURVE_PUBLICKEY, self._pair.public)
            outbox.setsockopt(zmq.CURVE_SECRETKEY, self._pair.private)
        try:
            outbox.connect(f"tcp://{peer}")
        except zmq.ZMQError:
            outbox.close()
            raise
        self._outboxes[peer] = outbox
        return outbox

    def drop(self, peer: Endpoint) -> None:
        """Close the socket to a peer and forget what is queued for it."""
        outbox = self._outboxes.pop(peer, None)
        if outbox is not None:
            outbox.close()

    def close(self, linger_ms: int = 0) -> None:
        """Close everything; what is queued may take `linger_ms` to leave."""
        if self._authenticator is not None:
            self._authenticator.stop()
        for outbox in self._outboxes.values():
            outbox.close(linger_ms)
        self._inbox.close(0)
        self._context.term()


class _OnlyKey:
    """Credentials provider: one key is let in."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by the authenticator with the key of a connecting peer."""
        return key == self._public

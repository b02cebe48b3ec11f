"""The scheduler's end of the line to its API process, and what it sleeps on.

The API process binds both ipc sockets, the scheduler connects. `wake()` may be called from any
thread (the KV manager's, a grammar compiler's) and ends a `receive` that waits, so that an idle
worker costs nothing and a busy one is never late.
"""

from __future__ import annotations

import logging
import os

import msgspec
import zmq

from pd_worker.messages import FromScheduler, ToScheduler, decode_to_scheduler, encode

log = logging.getLogger(__name__)


class Channel:
    """Messages from and to the API process; scheduler thread only, except `wake`."""

    def __init__(self, to_scheduler: str, from_scheduler: str) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._inbox = context.socket(zmq.PULL)
        self._outbox = context.socket(zmq.PUSH)
        for socket, endpoint in ((self._inbox, to_scheduler), (self._outbox, from_scheduler)):
            socket.setsockopt(zmq.LINGER, 1000)
            socket.set_hwm(0)
            socket.connect(endpoint)
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = zmq.Poller()
        self._poller.register(self._inbox, zmq.POLLIN)
        self._poller.register(self._event, zmq.POLLIN)

    def wake(self) -> None:
        """End a waiting `receive`; any thread."""
        os.eventfd_write(self._event, 1)

    def receive(self, timeout_s: float) -> list[ToScheduler]:
        """All messages that are there; waits up to `timeout_s` for one or for `wake`."""
        ready = dict(self._poller.poll(int(timeout_s * 1000)))
        if self._event in ready:
            os.eventfd_read(self._event)
        messages: list[ToScheduler] = []
        while self._inbox in ready:
            try:
                messages.append(decode_to_scheduler(self._inbox.recv(zmq.NOBLOCK)))
            except zmq.Again:
                break
            except msgspec.MsgspecError:
                log.exception("dropped a message that is not ours")
        return messages

    def send(self, message: FromScheduler) -> None:
        """Send a message; the queue is unbounded, so this does not block."""
        self._outbox.send(encode(message))

    def close(self) -> None:
        """Close sockets and the event; `wake` must not be called any more."""
        self._inbox.close()
        self._outbox.close()
        os.close(self._event)

"""The API process's end of the two sockets to its scheduler process.

One Engine a worker, on the one asyncio loop of the API process. It carries the samples of `Stream`s
(stream.py), watches the scheduler process and ends every running sample when that is gone.

    Stream.__enter__ ── GenerateRequest ──► PUSH ipc ──► scheduler
    Stream.get()     ◄── OutputBatch ────── PULL ipc ◄── scheduler
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import msgspec
import zmq
import zmq.asyncio

from pd_worker.api.stream import Stream
from pd_worker.api.vitals import Vitals
from pd_worker.errors import InvalidRequest, QueueFull, Unavailable
from pd_worker.messages import (
    AbortRequest,
    Bootstrap,
    Finish,
    FlushCache,
    FromScheduler,
    GenerateRequest,
    Output,
    OutputBatch,
    RejectRoom,
    Shutdown,
    ToScheduler,
    decode_from_scheduler,
    encode,
)

log = logging.getLogger(__name__)

WATCH_INTERVAL_S = 0.5
RETRY_AFTER_S = 2
RETRY_AFTER_DRAIN_S = 5


class Engine:
    """Both sockets, the table of running samples, and the watch over the scheduler process.

    Use as an async context manager. The API binds both endpoints, the scheduler connects.
    """

    def __init__(
        self,
        to_scheduler: str,
        from_scheduler: str,
        *,
        exit_code: Callable[[], int | None],
        max_samples: int,
    ) -> None:
        """`max_samples` bounds the samples that run or wait at once in this worker."""
        self.vitals = Vitals(exit_code)
        self.draining = False
        self._endpoints = (to_scheduler, from_scheduler)
        self.max_samples = max_samples
        self._context = zmq.asyncio.Context()
        self._push = self._context.socket(zmq.PUSH)
        self._pull = self._context.socket(zmq.PULL)
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self._samples: dict[str, Stream] = {}
        self._streams: dict[str, Stream] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        # Unbounded queues: what waits in them is bounded by max_samples, and a request is refused
        # as soon as the scheduler has been silent for HEARTBEAT_TIMEOUT_S.
        for socket in (self._push, self._pull):
            socket.set_hwm(0)
            socket.linger = 0
        self._push.bind(self._endpoints[0])
        self._pull.bind(self._endpoints[1])
        loops = (self._transmit(), self._receive(), self._watch())
        self._tasks = [asyncio.create_task(loop) for loop in loops]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._push.close()
        self._pull.close()
        self._context.term()

    @property
    def num_samples(self) -> int:
        """Samples that run or wait."""
        return len(self._samples)

    def missing(self) -> list[str]:
        """Why /ready is not 200; empty when it is."""
        return ["draining"] if self.draining else self.vitals.missing()

    def check_open(self) -> None:
        """Raise Unavailable unless requests can be served now."""
        if self.draining:
            raise Unavailable("this worker is shutting down", retry_after_s=RETRY_AFTER_DRAIN_S)
        if fault := self.vitals.fault():
            raise Unavailable(fault, retry_after_s=RETRY_AFTER_DRAIN_S)
        if self.vitals.ready is None:
            raise Unavailable("; ".join(self.vitals.missing()), retry_after_s=RETRY_AFTER_S)

    def stream(self, rid: str, requests: Sequence[GenerateRequest]) -> Stream:
        """The samples `requests` as one stream, not sent yet. `rid` is the name /abort_request
        knows it by."""
        return Stream(self, rid, requests)

    def has(self, rid: str) -> bool:
        """True while a request of that name runs."""
        return rid in self._streams

    def open_stream(self, stream: Stream) -> None:
        """Check and send; all samples or none."""
        self.check_open()
        self._check_room(stream)
        self._streams[stream.rid] = stream
        self._samples.update({request.rid: stream for request in stream.requests})
        self._idle.clear()
        for request in stream.requests:
            self.send(request)

    def _check_room(self, stream: Stream) -> None:
        if self.num_samples + len(stream.requests) > self.max_samples:
            raise QueueFull("too many requests are waiting", retry_after_s=RETRY_AFTER_S)
        taken = [request.rid for request in stream.requests if request.rid in self._samples]
        if self.has(stream.rid) or taken:
            raise InvalidRequest(f"rid {stream.rid!r} is already running", param="rid")

    def close_stream(self, stream: Stream) -> None:
        """Abort what still runs and forget the stream."""
        for rid in stream.running:
            self.drop(rid)
        for request in stream.requests:
            self._samples.pop(request.rid, None)
        del self._streams[stream.rid]
        if not self._streams:
            self._idle.set()

    def drop(self, rid: str) -> None:
        """Tell the scheduler that nobody waits for this sample any more."""
        self._samples.pop(rid, None)
        self.send(AbortRequest(rid))

    def abort(self, rid: str, reason: str) -> bool:
        """End the running request of exactly that name; False if there is none."""
        stream = self._streams.get(rid)
        if stream is None:
            return False
        for sample in stream.running:
            self.drop(sample)
        stream.fail(Finish("abort", message=reason))
        return True

    def reject(self, bootstrap: Bootstrap, reason: str) -> None:
        """A leg was refused here: let the scheduler tell the other side of the room; not where
        another request runs in that room, which a careless or hostile client may have named."""
        if bootstrap.room not in self._rooms():
            self.send(RejectRoom(bootstrap, reason))

    def _rooms(self) -> set[int]:
        requests = (request for stream in self._streams.values() for request in stream.requests)
        return {request.bootstrap.room for request in requests if request.bootstrap}

    def flush_cache(self) -> None:
        """Drop the unused part of the prefix cache."""
        self.send(FlushCache())

    def send(self, message: ToScheduler) -> None:
        """Queue one message for the scheduler; never blocks."""
        self._outbox.put_nowait(encode(message))

    async def drain(self, timeout_s: float) -> None:
        """Refuse new requests, wait for the running ones (not longer than timeout_s) and let the
        scheduler shut down. What still runs then ends with an error."""
        self.draining = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("drain: %d samples cut off after %.0f s", self.num_samples, timeout_s)
            self._fail_all("this worker has shut down")
        self.send(Shutdown())

    async def _transmit(self) -> None:
        """A task of its own, because a socket without a peer (yet) takes nothing."""
        while True:
            await self._push.send(await self._outbox.get())

    async def _receive(self) -> None:
        while True:
            data = await self._pull.recv()
            try:
                message = decode_from_scheduler(data)
            except msgspec.MsgspecError as error:
                log.error("scheduler sent %d bytes that are no message: %s", len(data), error)
                continue
            self._take(message)

    def _take(self, message: FromScheduler) -> None:
        self.vitals.note(message)
        if not isinstance(message, OutputBatch):
            return
        for output in message.outputs:
            stream = self._samples.get(output.rid)
            if stream is None:
                continue
            if output.finish is not None:
                del self._samples[output.rid]
            stream.put(output)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_INTERVAL_S)
            if (fault := self.vitals.fault()) and self._samples:
                log.error("%d running samples end: %s", self.num_samples, fault)
                self._fail_all(fault)

    def _fail_all(self, reason: str) -> None:
        for rid, stream in list(self._samples.items()):
            self.drop(rid)
            stream.put(Output(rid=rid, finish=Finish("error", None, 503, reason, "unavailable")))

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.vitals.failure = f"a task of the API process died: {task.exception()!r}"
            log.error("%s", self.vitals.failure)

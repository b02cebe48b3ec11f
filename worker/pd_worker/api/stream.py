"""The outputs of one HTTP request's samples, as long as its handler is interested.

A `Stream` opens one or more samples in the scheduler, hands out their outputs in order, and on
leaving tells the scheduler to abort those that still run, so that a client that goes away stops its
work at once. On the asyncio loop of the API process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol, Self

from pd_worker.messages import Finish, GenerateRequest, Output


class StreamHost(Protocol):
    """What a stream needs of the engine."""

    def open_stream(self, stream: Stream) -> None:
        """Check and send all samples, or raise RequestError and send none."""

    def close_stream(self, stream: Stream) -> None:
        """Abort what still runs and forget the stream."""

    def drop(self, rid: str) -> None:
        """Tell the scheduler that nobody waits for this sample any more."""


class Stream:
    """The samples of one HTTP request, running in the scheduler while the context is open.

    Its queue is bounded by the tokens its samples may produce.
    """

    def __init__(self, host: StreamHost, rid: str, requests: Sequence[GenerateRequest]) -> None:
        self.rid = rid
        self.requests = requests
        self._host = host
        self._index = {request.rid: index for index, request in enumerate(requests)}
        self._outputs: list[tuple[int, Output]] = []
        self._arrived = asyncio.Event()

    def __enter__(self) -> Self:
        """Send the samples; raises InvalidRequest, QueueFull or Unavailable and sends nothing."""
        self._host.open_stream(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._host.close_stream(self)

    @property
    def running(self) -> list[str]:
        """Ids of the samples that have not ended."""
        return list(self._index)

    async def get(self, timeout_s: float) -> list[tuple[int, Output]]:
        """All that has arrived, as (sample, output); waits for the first. Empty after timeout_s."""
        if not self._outputs:
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        outputs, self._outputs = self._outputs, []
        return outputs

    def put(self, output: Output) -> None:
        """Called by the engine: one more output of a running sample."""
        index = self._index.get(output.rid)
        if index is None:
            return
        if output.finish is not None:
            del self._index[output.rid]
        self._outputs.append((index, output))
        self._arrived.set()

    def end(self, sample: int) -> None:
        """The client needs no more of this sample; without effect where it has ended."""
        rid = self.requests[sample].rid
        if self._index.pop(rid, None) is not None:
            self._host.drop(rid)

    def fail(self, finish: Finish) -> None:
        """End every running sample with `finish`."""
        for rid in self.running:
            self.put(Output(rid=rid, finish=finish))

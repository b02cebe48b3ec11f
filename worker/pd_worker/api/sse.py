"""An answer as server-sent events, and the loop that writes one while it is generated.

    headers ─ ": " comment ─ data: chunk … ─ [data: {"error": …}] ─ data: [DONE]

The status line waits for the first output, an error or HEADER_GRACE_S, whichever is first: what
fails at once gets a real HTTP status, a long prefill does not keep proxies waiting for headers.
After that an error is an event, and every stream ends with exactly one [DONE].
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
from aiohttp import web

from pd_worker.api.choice import Delta
from pd_worker.api.failures import error_body, unexpected
from pd_worker.api.generation import Generation
from pd_worker.errors import RequestError

log = logging.getLogger(__name__)

HEADER_GRACE_S = 0.25

LAST_WORD_S = 1.0
"""Longest wait for a client that does not read, when its stream has to end."""

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class Codec(Protocol):
    """How one dialect writes an answer."""

    def chunks(self, generation: Generation, deltas: list[Delta]) -> Iterable[dict[str, Any]]:
        """Events for what has just come."""

    def tail(self, generation: Generation) -> Iterable[dict[str, Any]]:
        """Events after the last delta."""

    def answer(self, generation: Generation) -> Any:
        """The whole answer, when nothing is streamed."""


def event(payload: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(payload) + b"\n\n"


DONE = b"data: [DONE]\n\n"
COMMENT = b":\n\n"


async def stream_events(
    request: web.Request, generation: Generation, codec: Codec, keepalive_s: float
) -> web.StreamResponse:
    """Write the answer; raises RequestError only while the status line is not sent."""
    deltas = await generation.next(HEADER_GRACE_S)
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    try:
        async with asyncio.timeout_at(generation.deadline):
            await response.write(COMMENT)
            await _write_all(response, generation, codec, deltas, keepalive_s)
    except ConnectionError:
        log.debug("rid=%s the client left", generation.job.rid)
    except RequestError as error:
        await _end(response, generation, error)
    except TimeoutError:
        await _end(response, generation, generation.overdue())
    except Exception as error:  # the edge of a request whose status line is sent
        await _end(response, generation, unexpected(error, generation.job.rid))
    return response


async def _write_all(
    response: web.StreamResponse,
    generation: Generation,
    codec: Codec,
    deltas: list[Delta],
    keepalive_s: float,
) -> None:
    while True:
        events = b"".join(map(event, codec.chunks(generation, deltas)))
        if generation.done:
            break
        if events or not deltas:
            await response.write(events or COMMENT)
        deltas = await generation.next(keepalive_s)
    events += b"".join(map(event, codec.tail(generation)))
    await response.write(events + DONE)
    await response.write_eof()


async def _end(response: web.StreamResponse, generation: Generation, error: RequestError) -> None:
    generation.failed(error)
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(LAST_WORD_S):
            await response.write(event(error_body(error)) + DONE)
            await response.write_eof()

"""One leg: the POST of a request to one worker, its failures translated to LegFailed."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from pd_worker.router import sse
from pd_worker.router.call import Call
from pd_worker.router.failure import BAD_GATEWAY, LegFailed
from pd_worker.router.worker import Worker

ERROR_BODY_S = 1.0
"""Longest wait for the body of an error whose status is known already."""
STATUS_OF_CODE = {
    "invalid_request_error": 400,
    "queue_full": 429,
    "unavailable": 503,
    "timeout": 504,
}
"""Of error objects inside a stream, where the HTTP status is out already."""


class Leg:
    """The way to send one call's body to workers."""

    def __init__(self, session: aiohttp.ClientSession, call: Call, body: bytes) -> None:
        self._session, self._call, self._body = session, call, body

    @asynccontextmanager
    async def post(self, worker: Worker) -> AsyncIterator[aiohttp.ClientResponse]:
        """The worker's answer, with status 200, to be read inside the block; leaving the block
        early closes the connection, which tells the worker to stop.

        Raises LegFailed, also for what goes wrong while the answer is read.
        """
        try:
            async with self._session.post(
                worker.spec.url + self._call.path,
                data=io.BytesIO(self._body),
                headers={**self._call.headers, "Content-Type": "application/json"},
                allow_redirects=False,
            ) as response:
                if response.status != 200:
                    raise await _refusal(worker, response)
                yield response
        except (aiohttp.ClientError, OSError) as error:
            raise _broken(worker, error) from error


def stream_error(worker: Worker, event: bytes) -> LegFailed:
    """From an error object where a stream's first chunk should be."""
    value = sse.payload(event)
    told = value.get("error") if isinstance(value, dict) else None
    error: dict[str, Any] = told if isinstance(told, dict) else {}
    return LegFailed(
        worker.spec.url,
        _status_of(error),
        "stream_error",
        str(error.get("message", "the stream began with an error")),
        body=msgspec.json.encode({"error": told}),
    )


def _status_of(error: dict[str, Any]) -> int:
    code = error.get("code")
    if isinstance(code, int) and 400 <= code < 600:
        return code
    names = (str(code), str(error.get("type")))
    return next((STATUS_OF_CODE[name] for name in names if name in STATUS_OF_CODE), 500)


async def _refusal(worker: Worker, response: aiohttp.ClientResponse) -> LegFailed:
    status = response.status if response.status >= 400 else BAD_GATEWAY
    return LegFailed(
        worker.spec.url,
        status,
        f"http_{response.status}",
        f"answered {response.status}",
        body=await _error_body(response),
        retry_after=response.headers.get("Retry-After", ""),
    )


async def _error_body(response: aiohttp.ClientResponse) -> bytes:
    """The error's JSON object; empty where it is something else or does not come."""
    try:
        async with asyncio.timeout(ERROR_BODY_S):
            body = await response.read()
        return body if isinstance(msgspec.json.decode(body), dict) else b""
    except (TimeoutError, aiohttp.ClientError, OSError, msgspec.MsgspecError, RecursionError):
        return b""


def _broken(worker: Worker, error: Exception) -> LegFailed:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        reason, message = "connect_timeout", "no connection in time"
    elif isinstance(error, aiohttp.ClientConnectorError):
        reason, message = "connect", "cannot be connected to"
    else:
        reason, message = "reset", "closed the connection before its answer was complete"
    return LegFailed(worker.spec.url, BAD_GATEWAY, reason, message)

"""The client's side of one request: what has been said to it so far, and how a failure is told.

When the answer begins. Headers go out with the first event of decode that holds a token, so that
everything that fails before gets its true status, or another try that the client does not notice.
A long prefill must not look like a dead connection: after `HOLD_S` a comment opens the stream;
tries are still possible then, but a final failure can only be told as an event. After the first
token there are no more tries: a failure is an error event. Every stream that was opened ends with
exactly one [DONE], also after an error.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from aiohttp import web

from pd_worker.errors import RequestError
from pd_worker.router import sse
from pd_worker.router.failure import ClientGone, LegFailed

HOLD_S = 5.0
"""Well under the idle and response timeouts that proxies are shipped with (15 s and more)."""
STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
JSON_TYPE = "application/json"
PAIR, ATTEMPTS = "x-pdserve-pair", "x-pdserve-attempts"
"""Answer headers: who served it, and at which try."""


class Answer:
    """Begun: headers are out. Committed: a token is out, or the whole answer."""

    def __init__(self, request: web.Request, request_id: str) -> None:
        self._request, self.request_id = request, request_id
        self.headers = {"X-Request-ID": request_id}
        """Of the answer; attempts add to them until it begins."""
        self.started_at = time.monotonic()
        self.first_token_at: float | None = None
        self.response: web.StreamResponse | None = None
        self.status = 0
        self.ended = False

    @property
    def begun(self) -> bool:
        return self.response is not None

    @property
    def committed(self) -> bool:
        return self.first_token_at is not None

    @property
    def ttft_s(self) -> float | None:
        """From the request's arrival to the first token that went out; None before."""
        return None if self.first_token_at is None else self.first_token_at - self.started_at

    @property
    def open_at(self) -> float | None:
        """When a stream has to be opened at the latest (monotonic clock); None when it is."""
        return None if self.begun else self.started_at + HOLD_S

    async def comment(self, event: bytes) -> None:
        """Pass a keep-alive on, if the client has waited for long enough to need one."""
        if self.open_at is None or time.monotonic() >= self.open_at:
            await self._write(event)

    async def events(self, events: bytes) -> None:
        """Pass events on that hold tokens."""
        await self._write(events)
        self._commit()

    async def end(self) -> None:
        """The stream is complete."""
        await self._open()
        await self._finish()

    async def whole(self, status: int, body: bytes, content_type: str = JSON_TYPE) -> None:
        """An answer in one piece."""
        headers = {**self.headers, "Content-Type": content_type}
        response = web.Response(status=status, body=body, headers=headers)
        self.status, self.response = status, response
        if status < 400:
            self._commit()
        await self._to_client(response.prepare(self._request))
        await self._finish()

    async def fail(self, error: LegFailed | RequestError) -> None:
        """Tell a failure, as the answer's state allows."""
        if self.ended:
            return
        if retry_after := _retry_after(error):
            self.headers["Retry-After"] = retry_after
        if not self.begun:
            await self.whole(error.status, error_body(error))
            return
        await self._write(sse.encode(msgspec.json.decode(error_body(error))) + sse.DONE)
        await self._finish()

    def _commit(self) -> None:
        if self.first_token_at is None:
            self.first_token_at = time.monotonic()

    async def _open(self) -> web.StreamResponse:
        if self.response is None:
            self.status = 200
            self.response = web.StreamResponse(headers={**self.headers, **STREAM_HEADERS})
            await self._to_client(self.response.prepare(self._request))
        return self.response

    async def _write(self, data: bytes) -> None:
        response = await self._open()
        await self._to_client(response.write(data))

    async def _finish(self) -> None:
        assert self.response is not None
        self.ended = True
        await self._to_client(self.response.write_eof())

    async def _to_client(self, action: Any) -> None:
        try:
            await action
        except OSError as error:
            raise ClientGone(str(error)) from error


def error_body(error: LegFailed | RequestError) -> bytes:
    """The worker's own error object where there is one, else ours in OpenAI's form."""
    if isinstance(error, LegFailed):
        return error.body or _object(error.message, "upstream_error", None, error.reason)
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return _object(error.message, kind, error.param, error.code)


def _object(message: str, kind: str, param: str | None, code: str) -> bytes:
    error = {"message": message, "type": kind, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


def _retry_after(error: LegFailed | RequestError) -> str:
    if isinstance(error, LegFailed):
        return error.retry_after
    return str(error.retry_after_s) if error.retry_after_s is not None else ""

"""The endpoints that generate: /v1/chat/completions, /v1/completions, /generate.

The edge of a request: every way in which it can end is told to the client, counted and logged
here, once.
"""

from __future__ import annotations

import asyncio
import logging
import time

from aiohttp import web

from pd_worker.errors import RequestError
from pd_worker.router.answer import ATTEMPTS, PAIR, Answer
from pd_worker.router.call import choose_request_id, read_call
from pd_worker.router.failure import BodyTooLarge, ClientGone, LegFailed
from pd_worker.router.metrics import Metrics
from pd_worker.router.retry import Dispatcher

log = logging.getLogger(__name__)

PATHS = ("/v1/chat/completions", "/v1/completions", "/generate")
CLIENT_GONE = 499


class Inference:
    """Handles requests on PATHS. While `draining` it ends each connection with its answer."""

    def __init__(self, dispatcher: Dispatcher, metrics: Metrics, *, trust_pd_fields: bool) -> None:
        self._dispatcher, self._metrics = dispatcher, metrics
        self._trust_pd_fields = trust_pd_fields
        self.draining = False
        self.running = 0
        self.idle = asyncio.Event()
        """Set while nothing runs."""
        self.idle.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one request. Cancelled by the server when the client leaves."""
        answer = Answer(request, choose_request_id(request.headers))
        status, reason = CLIENT_GONE, "client_gone"
        self._count(1)
        try:
            reason = await self._answer(request, answer)
            status = answer.status
        except ClientGone:
            log.debug("id=%s the client left", answer.request_id)
        except asyncio.CancelledError:
            if answer.ended:  # the client has it all and left before prefill had ended its own
                status, reason = answer.status, ""
            raise
        finally:
            self._count(-1)
            self._note(request.path, answer, status, reason)
        return answer.response or web.Response(status=CLIENT_GONE)

    async def _answer(self, request: web.Request, answer: Answer) -> str:
        """Serve the request or tell why not; returns the reason of a failure, else nothing."""
        try:
            await self._serve(request, answer)
            return ""
        except LegFailed as failure:
            await answer.fail(failure)
            return f"{failure.reason} at {failure.worker}"
        except RequestError as error:
            await answer.fail(error)
            return error.code
        except ClientGone:
            raise
        except Exception:
            log.exception("id=%s failed through a fault of the router", answer.request_id)
            await answer.fail(RequestError("internal error of the router"))
            return "internal_error"

    async def _serve(self, request: web.Request, answer: Answer) -> None:
        call = read_call(
            request.path,
            request.headers,
            await read_body(request),
            answer.request_id,
            trust_pd_fields=self._trust_pd_fields,
        )
        await self._dispatcher.serve(call, answer)

    def _count(self, change: int) -> None:
        self.running += change
        (self.idle.clear if self.running else self.idle.set)()

    def _note(self, path: str, answer: Answer, status: int, reason: str) -> None:
        total_s = time.monotonic() - answer.started_at
        self._metrics.requests.labels(path, str(status)).inc()
        self._metrics.seconds.observe(total_s)
        if answer.ttft_s is not None:
            self._metrics.ttft.observe(answer.ttft_s)
        log.info(
            "id=%s path=%s pair=%s attempts=%s status=%d ttft_ms=%s total_ms=%.0f reason=%r",
            answer.request_id,
            path,
            answer.headers.get(PAIR, "-"),
            answer.headers.get(ATTEMPTS, "0"),
            status,
            "-" if answer.ttft_s is None else f"{answer.ttft_s * 1000:.0f}",
            total_s * 1000,
            reason,
        )


async def read_body(request: web.Request) -> bytes:
    """The whole body; raises BodyTooLarge."""
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise BodyTooLarge(f"the body is too large: {error.text}") from None

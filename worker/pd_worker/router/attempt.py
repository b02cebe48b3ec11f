"""One attempt of a request on one pair: both legs at once, the first failure ends both.

1. Both legs get the same body at the same time; neither waits for the other (the transfer needs
   both: prefill cannot finish before decode has told it where the KV goes).
2. The client's answer is decode's, passed on as it comes (see answer.py for when it begins).
   Prefill's is read and thrown away, except for what merge.py takes from it.
3. The leg that fails first raises; its TaskGroup cancels the other, which closes that connection
   and with it the request on that worker. The same happens when the client leaves.
4. Once decode has sent a token of a single prompt it has all the KV, so that prefill may fail
   then without harm to the answer.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import aiohttp
import msgspec

from pd_worker.router import sse
from pd_worker.router.answer import ATTEMPTS, Answer
from pd_worker.router.call import Call
from pd_worker.router.failure import BAD_GATEWAY, LegFailed
from pd_worker.router.leg import Leg, stream_error
from pd_worker.router.merge import PrefillPart, add_stages
from pd_worker.router.pairing import Route
from pd_worker.router.worker import Worker

SETTLE_S = 2.0
"""After a complete answer: how long prefill may still take to end its own before it is cut off."""


class Attempt:
    """Runs once."""

    def __init__(
        self, session: aiohttp.ClientSession, call: Call, route: Route, answer: Answer
    ) -> None:
        self._call, self._route, self._answer = call, route, answer
        self._leg = Leg(session, call, call.encode(route))
        self._part: asyncio.Future[PrefillPart] = asyncio.get_running_loop().create_future()
        self._sent_at = time.time()
        self._held = b""

    @property
    def waits_for(self) -> Worker:
        """Who is to blame if time runs out now."""
        prefill = self._route.prefill
        return self._route.decode if prefill is None or self._part.done() else prefill

    async def run(self) -> None:
        """Send both legs and answer the client; raises LegFailed or ClientGone."""
        try:
            async with asyncio.TaskGroup() as legs:
                prefill = legs.create_task(self._prefill())
                await self._decode()
                await asyncio.wait([prefill], timeout=SETTLE_S)
                prefill.cancel()
        except ExceptionGroup as group:
            raise _outcome(group) from None

    async def _prefill(self) -> None:
        worker = self._route.prefill
        if worker is None:
            self._part.set_result(PrefillPart())
            return
        try:
            async with worker.leg(self._call.prompt.tokens), self._leg.post(worker) as response:
                body = await self._read_prefill(worker, response)
            self._part.set_result(PrefillPart.read(body))
        except LegFailed:
            if not (self._answer.ended or (self._answer.committed and self._call.is_single)):
                raise
            self._part.set_result(PrefillPart())

    async def _read_prefill(self, worker: Worker, response: aiohttp.ClientResponse) -> bytes:
        """The whole body where something of it is needed, else nothing."""
        kept, framer = [], sse.Framer()
        async for chunk in response.content.iter_any():
            for event in framer.feed(chunk) if _is_stream(response) else []:
                if sse.is_error(event):
                    raise stream_error(worker, event)
            if self._call.needs_prefill:
                kept.append(chunk)
        return b"".join(kept)

    async def _decode(self) -> None:
        worker = self._route.decode
        async with worker.leg(self._call.prompt.tokens), self._leg.post(worker) as response:
            if _is_stream(response):
                await self._relay(worker, response)
            else:
                await self._whole(response)

    async def _whole(self, response: aiohttp.ClientResponse) -> None:
        if self._answer.begun:
            raise LegFailed(self._route.decode.spec.url, BAD_GATEWAY, "no_stream", "did not stream")
        body = await response.read()
        if self._call.needs_prefill and (value := sse.payload(body)) is not None:
            body = msgspec.json.encode(await self._complete(value))
        await self._answer.whole(200, body, response.content_type)

    async def _relay(self, worker: Worker, response: aiohttp.ClientResponse) -> None:
        framer = sse.Framer()
        while chunk := await self._next(response):
            await self._pass_on(worker, framer.feed(chunk))
        if framer.rest or not (self._answer.committed or self._held):
            raise LegFailed(worker.spec.url, BAD_GATEWAY, "cut", "ended its stream too early")
        if self._held:
            await self._answer.events(self._held)
        await self._answer.end()

    async def _next(self, response: aiohttp.ClientResponse) -> bytes:
        """What decode sends next, empty at its end; a comment when the client waited too long."""
        try:
            async with asyncio.timeout_at(self._answer.open_at):
                return await response.content.readany()
        except TimeoutError:
            return sse.WAITING

    async def _pass_on(self, worker: Worker, events: list[bytes]) -> None:
        """Write what came in one go in one go; hold what comes before the first token."""
        ready = b""
        for event in events:
            if sse.is_comment(event):
                await self._answer.comment(event)
            elif sse.is_error(event):
                await self._pass_error(worker, ready, event)
            elif not (self._answer.committed or ready) and sse.is_prelude(event):
                self._held += event
            else:
                ready += await self._completed(event)
        if ready:
            await self._answer.events(self._held + ready)
            self._held = b""

    async def _pass_error(self, worker: Worker, ready: bytes, event: bytes) -> None:
        """Before the first token an error is a failed attempt, after it the end of the stream."""
        if self._answer.committed or ready:
            await self._answer.events(self._held + ready + event + sse.DONE)
            await self._answer.end()
        raise stream_error(worker, event)

    async def _completed(self, event: bytes) -> bytes:
        """The event with what only prefill and the router know."""
        logprobs = self._call.wants_prompt_logprobs and b"logprob" in event
        stages = self._call.wants_timeline and b'"pdserve"' in event
        value = sse.payload(event) if logprobs or stages else None
        return event if value is None else sse.encode(await self._complete(value))

    async def _complete(self, value: Any) -> Any:
        part = await asyncio.shield(self._part)
        if self._call.wants_timeline:
            prefill = [{**stage, "leg": "prefill"} for stage in part.stages]
            add_stages(value, [self._dispatch_stage(), *prefill])
        return part.complete(value)

    def _dispatch_stage(self) -> dict[str, Any]:
        """The router's own share of the timeline: from the request's arrival to both legs."""
        tries = self._answer.headers[ATTEMPTS]
        return {
            "name": "dispatch",
            "start": self._call.received_at,
            "end": self._sent_at,
            "detail": f"attempt {tries}",
            "leg": "router",
        }


def _outcome(group: ExceptionGroup[Exception]) -> BaseException:
    """The failure that came first; but a request that was cancelled meanwhile stays cancelled."""
    task = asyncio.current_task()
    return asyncio.CancelledError() if task and task.cancelling() else group.exceptions[0]


def _is_stream(response: aiohttp.ClientResponse) -> bool:
    return response.content_type == "text/event-stream"

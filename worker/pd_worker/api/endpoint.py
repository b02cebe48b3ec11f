"""The course of every generating request: plan it, open it, answer it.

A dialect brings a `prepare` that turns its body into a Plan. A request that is refused although it
named a room tells the scheduler, which tells the other leg, so that nobody waits for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from pd_worker.api.context import CONTEXT, Context
from pd_worker.api.failures import json_response
from pd_worker.api.generation import Generation, Job
from pd_worker.api.rooms import recover_bootstraps
from pd_worker.api.schema import read_json_object
from pd_worker.api.sse import Codec, stream_events
from pd_worker.errors import RequestError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A request that may run, and how to write its answer."""

    job: Job
    codec: Codec
    stream: bool


Prepare = Callable[[web.Request, dict[str, Any]], Awaitable[Plan]]


async def answer(request: web.Request, prepare: Prepare) -> web.StreamResponse:
    """Serve one generating request."""
    context = request.app[CONTEXT]
    raw = read_json_object(await request.read())
    with contextlib.ExitStack() as stack:
        try:
            plan = await prepare(request, raw)
            generation = stack.enter_context(Generation(context, plan.job))
        except RequestError as error:
            _refuse(context, raw, error)
            raise
        if plan.stream:
            keepalive_s = context.config.server.sse_keepalive_s
            return await stream_events(request, generation, plan.codec, keepalive_s)
        await generation.complete()
        return json_response(plan.codec.answer(generation))


def wants_timeline(request: web.Request, field: bool | None) -> bool:
    """True where the client asks for the stages of its request."""
    return bool(field) or request.headers.get("X-Pdserve-Timeline", "").lower() in ("1", "true")


def _refuse(context: Context, raw: dict[str, Any], error: RequestError) -> None:
    context.metrics.count(error.code)
    if context.config.role == "unified":
        return
    for bootstrap in recover_bootstraps(raw, context.config.disagg.bootstrap_port):
        context.engine.reject(bootstrap, error.message)

"""The end of a router's life: signals, and what still runs when they come."""

from __future__ import annotations

import asyncio
import logging
import signal

from aiohttp import web

from pd_worker.router.inference import Inference

log = logging.getLogger(__name__)


async def until_drained(site: web.BaseSite, inference: Inference, limit_s: float) -> None:
    """Wait for a signal, take no new connections, wait for all requests or a second signal.

    A request that still comes by an open connection is served: its client cannot know better.
    """
    first, second = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: (second if first.is_set() else first).set())
    await first.wait()
    inference.draining = True
    await site.stop()
    log.info("draining, requests=%d", inference.running)
    waits = [asyncio.create_task(event.wait()) for event in (inference.idle, second)]
    await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()

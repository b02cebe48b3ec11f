"""How many requests are with workers at a time, and how many may wait for that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pd_worker.errors import QueueFull

RETRY_AFTER_S = 1


class Admission:
    """Places for `max_inflight` requests and a first-in-first-out queue of `max_queued`."""

    def __init__(self, *, max_inflight: int, max_queued: int) -> None:
        self._places = asyncio.Semaphore(max_inflight)
        self._max_queued = max_queued
        self.inflight = 0
        self.queued = 0

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place, after a wait where all are taken; raises QueueFull."""
        await self._acquire()
        self.inflight += 1
        try:
            yield
        finally:
            self.inflight -= 1
            self._places.release()

    async def _acquire(self) -> None:
        if self._places.locked() and self.queued >= self._max_queued:
            raise QueueFull("the router's queue is full", retry_after_s=RETRY_AFTER_S)
        self.queued += 1
        try:
            await self._places.acquire()
        finally:
            self.queued -= 1

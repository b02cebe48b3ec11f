"""The fleet: follows a Discovery and looks at every listed worker at an interval.

One task follows the list, one task a worker looks at it. `problem` says when one of them died,
which must never happen and turns the router's /health red.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Iterator

import aiohttp

from pd_worker.router.breaker import Breaker
from pd_worker.router.discovery import Discovery
from pd_worker.router.options import HealthOptions
from pd_worker.router.pairing import why_none
from pd_worker.router.probe import look_at
from pd_worker.router.worker import Worker, WorkerSpec

log = logging.getLogger(__name__)

MIN_PAUSE_S = 0.2
"""Between two looks at a worker that requests report as failing."""


class Registry:
    """All listed workers, by URL."""

    def __init__(
        self, discovery: Discovery, session: aiohttp.ClientSession, options: HealthOptions
    ) -> None:
        self._discovery, self._session, self._options = discovery, session, options
        self._workers: dict[str, Worker] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}
        self._follower: asyncio.Task[None] | None = None
        self._complete_at = -math.inf

    def __iter__(self) -> Iterator[Worker]:
        return iter(list(self._workers.values()))

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def problem(self) -> str:
        """Empty while all tasks run."""
        tasks = [*self._watches.values(), *([self._follower] if self._follower else [])]
        return next((f"{task.get_name()} ended" for task in tasks if task.done()), "")

    @property
    def incomplete_s(self) -> float:
        """Seconds since a request could be served: 0 while one can, infinite if never."""
        return self._note_complete() - self._complete_at

    def _note_complete(self) -> float:
        """Remember that one can be served now, where that is so; the time."""
        now = asyncio.get_running_loop().time()
        if not why_none(list(self)):
            self._complete_at = now
        return now

    def start(self) -> None:
        """Begin to follow the list; needs a running loop."""
        self._follower = asyncio.create_task(self._follow(), name="discovery")

    async def stop(self) -> None:
        """End every task."""
        tasks = [*self._watches.values(), *([self._follower] if self._follower else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        async for wanted in self._discovery.watch():
            self._adopt(wanted)

    def _adopt(self, wanted: frozenset[WorkerSpec]) -> None:
        """Requests on a worker that leaves the list go on; it gets no new ones."""
        self._note_complete()
        for url, worker in list(self._workers.items()):
            if worker.spec not in wanted:
                del self._workers[url]
                self._watches.pop(url).cancel()
        for spec in sorted(wanted, key=lambda spec: spec.url):
            if spec.url not in self._workers:
                self._add(spec)

    def _add(self, spec: WorkerSpec) -> None:
        health = self._options
        breaker = Breaker(failures=health.breaker_failures, cooldown_s=health.breaker_cooldown_s)
        worker = self._workers[spec.url] = Worker(spec, breaker)
        self._watches[spec.url] = asyncio.create_task(
            self._watch(worker), name=f"watch of {spec.url}"
        )

    async def _watch(self, worker: Worker) -> None:
        while True:
            before = worker.state
            worker.suspect.clear()
            look = await look_at(self._session, worker.spec, self._options.health_timeout_s)
            self._note_complete()
            worker.observe(look)
            if worker.state != before:
                log.info(
                    "worker=%s role=%s state=%s reason=%r",
                    worker.spec.url,
                    worker.spec.role,
                    worker.state,
                    worker.reason,
                )
            await self._pause(worker)

    async def _pause(self, worker: Worker) -> None:
        """An interval, cut short when requests report the worker as failing."""
        interval = self._options.health_interval_s * random.uniform(0.9, 1.1)
        await asyncio.sleep(min(MIN_PAUSE_S, interval))
        try:
            async with asyncio.timeout(max(0.0, interval - MIN_PAUSE_S)):
                await worker.suspect.wait()
        except TimeoutError:
            return

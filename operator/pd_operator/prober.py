"""Reads the workers' metrics over HTTP, apart from reconcile, which only takes what was read last.

One task a deployment; at most CONCURRENT requests at a time. A worker that does not answer is left
out: its load grows old, and scaling.py holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import aiohttp

from pd_operator import metrics, names
from pd_operator.conditions import Judgement, no, yes
from pd_operator.growth import Loads
from pd_operator.observed import Observed
from pd_operator.ports import ports_of
from pd_operator.resource import Key, Resource
from pd_operator.roster import crews
from pd_operator.transfers import Totals, judge

logger = logging.getLogger(__name__)

INTERVAL_S = 15.0
RATE = 50.0
"""Requests a second that all deployments together cost; with more workers each is asked less."""
CONCURRENT = 64
TIMEOUT = aiohttp.ClientTimeout(total=5.0)
LARGEST = 4 << 20
"""Bytes of an answer; a larger one counts as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A worker to ask."""

    name: str
    """Of its first pod."""
    host: str
    port: int
    bootstrap_port: int | None = None
    """Of prefill workers; None on decode."""

    def url(self, port: int, path: str) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}{path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """The ready workers of a deployment, and what their metrics are called."""

    series: metrics.Names
    workers: tuple[Target, ...]


def targets(resource: Resource, observed: Observed) -> Targets:
    """The ready workers of a deployment."""
    found = []
    for role in names.ROLES:
        ports = ports_of(resource, role)
        bootstrap = ports.bootstrap if role == "prefill" else None
        for pods in crews(resource, observed, role).values():
            first = pods[0]
            if first.ready and first.ip and not first.terminating:
                found.append(
                    Target(
                        name=first.name, host=first.ip, port=ports.http, bootstrap_port=bootstrap
                    )
                )
    return Targets(series=metrics.NAMES[resource.spec.engine.type], workers=tuple(found))


@dataclass(slots=True)
class Sight:
    """What was seen of a deployment's workers last."""

    scrapes: dict[str, metrics.Scrape] = field(default_factory=dict)
    loads: dict[str, metrics.WorkerLoad] = field(default_factory=dict)
    totals: dict[str, Totals] = field(default_factory=dict)
    bootstrap: Judgement | None = None
    transfers: Judgement | None = None


class Prober:
    """Follows the deployments that reconcile tells it to."""

    def __init__(self, changed: Callable[[Key], None]) -> None:
        self._changed = changed
        self._targets: dict[Key, Targets] = {}
        self._sights: dict[Key, Sight] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._places = asyncio.Semaphore(CONCURRENT)
        self._session: aiohttp.ClientSession | None = None

    def sight(self, key: Key) -> Sight:
        """What was seen last; empty where nothing was."""
        return self._sights.get(key) or Sight()

    def follow(self, key: Key, targets: Targets) -> None:
        """Ask these workers from now on; none: stop asking."""
        if not targets.workers:
            self.forget(key)
            return
        self._targets[key] = targets
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._watch(key))

    def forget(self, key: Key) -> None:
        """Stop asking, and forget what was seen."""
        self._targets.pop(key, None)
        self._sights.pop(key, None)
        task = self._tasks.pop(key, None)
        if task:
            task.cancel()

    def rest(self) -> None:
        """Stop asking all of them: another replica acts now."""
        for key in list(self._tasks):
            self.forget(key)

    async def close(self) -> None:
        """End everything."""
        tasks = list(self._tasks.values())
        self.rest()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._session:
            await self._session.close()

    async def _watch(self, key: Key) -> None:
        while True:
            try:
                await self._round(key)
            except Exception:
                logger.exception("%s: a bug of the operator", key)
            await asyncio.sleep(self._interval_s() * random.uniform(0.9, 1.1))

    def _interval_s(self) -> float:
        workers = sum(len(targets.workers) for targets in self._targets.values())
        return max(INTERVAL_S, 2 * workers / RATE)

    async def _round(self, key: Key) -> None:
        targets, seen = self._targets[key], self._sights.get(key, Sight())
        told = await asyncio.gather(*(self._ask(target) for target in targets.workers))
        scrapes = {scrape_name: scrape for scrape_name, scrape, _ in told if scrape}
        fresh = Sight(
            scrapes=scrapes,
            loads=dict(self._loads(targets.series, seen, scrapes)),
            totals={name: Totals.of(scrape) for name, scrape in scrapes.items()},
            bootstrap=_bootstrap({name: reached for name, _, reached in told}),
        )
        decode = [target.name for target in targets.workers if target.bootstrap_port is None]
        fresh.transfers = judge(seen.totals, fresh.totals, decode, seen.transfers)
        self._sights[key] = fresh
        if (seen.bootstrap, seen.transfers) != (fresh.bootstrap, fresh.transfers):
            self._changed(key)

    def _loads(
        self, series: metrics.Names, seen: Sight, scrapes: Mapping[str, metrics.Scrape]
    ) -> Loads:
        fresh = {
            name: metrics.load(series, seen.scrapes.get(name), scrape)
            for name, scrape in scrapes.items()
        }
        return seen.loads | fresh

    async def _ask(self, target: Target) -> tuple[str, metrics.Scrape | None, bool | None]:
        """Name, metrics, and whether its bootstrap server answers (None on decode)."""
        text = await self._get(target.url(target.port, "/metrics"))
        scrape = None
        if text is not None:
            with contextlib.suppress(ValueError):
                scrape = metrics.parse(text, time.time())
        if target.bootstrap_port is None:
            return target.name, scrape, None
        health = await self._get(target.url(target.bootstrap_port, "/health"))
        return target.name, scrape, health is not None

    async def _get(self, url: str) -> str | None:
        """The body of a 200; None for anything else."""
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=TIMEOUT)
        try:
            async with self._places, self._session.get(url) as response:
                if response.status != 200:
                    return None
                return await _text(response)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            logger.debug("%s: %s", url, error)
            return None


async def _text(response: aiohttp.ClientResponse) -> str | None:
    """All of the body, however many pieces it comes in; None where it is larger than LARGEST."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > LARGEST:
            return None
    return body.decode(errors="replace")


def _bootstrap(reached: Mapping[str, bool | None]) -> Judgement | None:
    """BootstrapReachable of the prefill workers that were asked."""
    asked = {name: ok for name, ok in reached.items() if ok is not None}
    silent = sorted(name for name, ok in asked.items() if not ok)
    if not asked:
        return None
    if silent:
        return no("BootstrapUnreachable", f"no answer from {', '.join(silent[:3])}")
    return yes("Reachable", "every ready prefill worker's bootstrap server answers")

"""A request's attempts under one deadline: which failure is worth another pair, and which is not.

A request for which there is no worker just now, as while the only one restarts, waits for one.
Sent again: 5xx and broken connections, and 429 where another worker may have room; always with new
rooms, on other workers where there are any, and only until the first token is out.
"""

from __future__ import annotations

import asyncio
import random
import time

import aiohttp

from pd_worker.errors import Unavailable
from pd_worker.router.admission import Admission
from pd_worker.router.answer import ATTEMPTS, PAIR, Answer
from pd_worker.router.attempt import Attempt
from pd_worker.router.call import Call
from pd_worker.router.failure import LegFailed, Timeout
from pd_worker.router.metrics import Metrics
from pd_worker.router.options import LimitOptions
from pd_worker.router.pairing import Route
from pd_worker.router.selector import Selector

PAUSE_S = 0.05
"""Before a worker may see the same request again, doubled each time; else there is no pause."""


LOOK_S = 0.2
"""Between two looks for a worker while there is none."""


class Dispatcher:
    """Serves calls."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        selector: Selector,
        limits: LimitOptions,
        metrics: Metrics,
    ) -> None:
        self._session, self._selector, self._limits = session, selector, limits
        self._metrics = metrics
        self.admission = Admission(max_inflight=limits.max_inflight, max_queued=limits.max_queued)

    async def serve(self, call: Call, answer: Answer) -> None:
        """Answer the client; raises LegFailed, RequestError or ClientGone where that failed."""
        attempts: list[Attempt] = []
        limit_s = self._limits.request_timeout_s
        try:
            async with asyncio.timeout(limit_s), self.admission.place():
                await self._attempts(call, answer, attempts)
        except TimeoutError:
            if attempts and not answer.ended:
                attempts[-1].waits_for.blame()
            raise Timeout(f"the request took more than {limit_s:g} s") from None

    async def _attempts(self, call: Call, answer: Answer, attempts: list[Attempt]) -> None:
        failures: list[LegFailed] = []
        wait_until = time.monotonic() + self._limits.worker_wait_s
        while True:
            route = await self._route(call, failures, wait_until)
            answer.headers |= {PAIR: str(route), ATTEMPTS: str(len(failures) + 1)}
            attempts.append(Attempt(self._session, call, route, answer))
            self._metrics.attempts.inc()
            try:
                return await attempts[-1].run()
            except LegFailed as failure:
                self._metrics.leg_failures.labels(failure.reason).inc()
                failures.append(failure)
                if not self._again(call, answer, failures):
                    raise
            await self._pause(call, failures)

    async def _route(self, call: Call, failures: list[LegFailed], wait_until: float) -> Route:
        while True:
            try:
                return self._selector.choose(call, _blamed(failures))
            except Unavailable as error:
                lost = self._selector.incomplete_s >= self._limits.worker_wait_s
                if lost or time.monotonic() >= wait_until:
                    raise (failures[-1] if failures else error) from None
            await asyncio.sleep(LOOK_S * random.uniform(0.5, 1.0))

    def _again(self, call: Call, answer: Answer, failures: list[LegFailed]) -> bool:
        if answer.committed or call.has_own_room or len(failures) >= self._limits.max_attempts:
            return False
        if failures[-1].is_full:
            return self._selector.can_avoid(call, _blamed(failures))
        return failures[-1].may_retry

    async def _pause(self, call: Call, failures: list[LegFailed]) -> None:
        self._metrics.retries.inc()
        if call.has_own_rid or not self._selector.can_avoid(call, _blamed(failures)):
            await asyncio.sleep(PAUSE_S * 2 ** len(failures) * random.uniform(0.5, 1.0))


def _blamed(failures: list[LegFailed]) -> set[str]:
    return {failure.worker for failure in failures}

"""Leader election by a Lease: of several replicas one acts, and another takes over when it stops.

A lease is judged by our own clock since its last visible change, so that clocks need not agree.
The leader stops acting before another one may begin: RENEW_WITHIN_S < DURATION_S.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from pd_operator import names
from pd_operator.cluster import Cluster
from pd_operator.errors import ApiError, NotFound
from pd_operator.kinds import LEASE
from pd_operator.resource import Manifest

logger = logging.getLogger(__name__)

DURATION_S = 15
RENEW_WITHIN_S = 10.0
RETRY_S = 2.0


class Election:
    """One replica's part in it."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, identity: str) -> None:
        self._cluster, self._namespace, self._name = cluster, namespace, name
        self.identity = identity
        self.leading = False
        self._seen: tuple[str, str] = ("", "")
        """Holder and renew time when the lease changed last."""
        self._seen_at = 0.0
        self._asked_at = 0.0
        """When the latest attempt began: others may count from then on, however late its answer."""

    async def run(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run `act` whenever and as long as this replica leads; gives the lease back at the end."""
        try:
            while True:
                await self._until_acquired()
                logger.info("leading as %s", self.identity)
                self.leading = True
                try:
                    await self._lead(act)
                finally:
                    self.leading = False
                logger.warning("the lease could not be renewed: no longer leading")
        finally:
            await self._release()

    async def _until_acquired(self) -> None:
        while True:
            if await self._attempt(RENEW_WITHIN_S):
                return
            await asyncio.sleep(RETRY_S)

    async def _lead(self, act: Callable[[], Awaitable[None]]) -> None:
        """Returns when the lease was not renewed in time. What `act` raises is raised."""
        work = asyncio.ensure_future(act())
        until = self._asked_at + RENEW_WITHIN_S
        try:
            while (left_s := until - time.monotonic()) > 0:
                done, _ = await asyncio.wait({work}, timeout=min(RETRY_S, left_s))
                if done:
                    return work.result()
                if await self._attempt(until - time.monotonic()):
                    until = self._asked_at + RENEW_WITHIN_S
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)

    async def _attempt(self, within_s: float) -> bool:
        """Take or renew the lease; False where it is another's or the API server does not say."""
        self._asked_at = time.monotonic()
        try:
            async with asyncio.timeout(min(within_s, RENEW_WITHIN_S / 2)):
                return await self._take()
        except (ApiError, TimeoutError) as error:
            logger.warning("lease: %s", error or "no answer")
            return False

    async def _take(self) -> bool:
        try:
            lease = await self._cluster.get(LEASE, self._namespace, self._name)
        except NotFound:
            await self._cluster.create(LEASE, self._lease({}, self.identity))
            return True
        if not self._free(lease.get("spec") or {}):
            return False
        await self._cluster.replace(LEASE, self._lease(lease, self.identity))
        return True

    def _free(self, spec: Manifest) -> bool:
        """Ours, nobody's, or not renewed for its duration."""
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self.identity):
            return True
        seen = (holder, spec.get("renewTime") or "")
        if seen != self._seen:
            self._seen, self._seen_at = seen, time.monotonic()
        waited_s = time.monotonic() - self._seen_at
        return waited_s > float(spec.get("leaseDurationSeconds") or DURATION_S)

    def _lease(self, before: Manifest, holder: str) -> Manifest:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = before.get("spec", {})
        changes = int(old.get("leaseTransitions") or 0)
        kept = old.get("holderIdentity") == holder
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": {"name": self._name, "namespace": self._namespace, "labels": names.OPERATOR}
            | before.get("metadata", {}),
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": DURATION_S,
                "acquireTime": old["acquireTime"] if kept else now,
                "renewTime": now,
                "leaseTransitions": changes if kept else changes + 1,
            },
        }

    async def _release(self) -> None:
        """Let another one begin at once instead of when the lease runs out."""
        try:
            async with asyncio.timeout(RENEW_WITHIN_S / 2):
                lease = await self._cluster.get(LEASE, self._namespace, self._name)
                if lease.get("spec", {}).get("holderIdentity") == self.identity:
                    await self._cluster.replace(LEASE, self._lease(lease, ""))
        except (ApiError, TimeoutError) as error:
            logger.warning("lease not given back: %s", error or "no answer")

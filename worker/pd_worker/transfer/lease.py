"""Prefill's entry in the BootstrapServer: put, read back, renewed, and removed at the end.

Lives on the control thread, except that `registered` may be read from anywhere.
"""

from __future__ import annotations

import asyncio
import logging
import time

import aiohttp
import msgspec

from pd_worker.errors import TransferError
from pd_worker.transfer.args import RankAddress, Route
from pd_worker.transfer.control import Control
from pd_worker.transfer.tally import LogLimiter

logger = logging.getLogger(__name__)

RETRY_S = 0.5


class Lease:
    """Keeps one row registered."""

    def __init__(self, control: Control, url: str, route: Route) -> None:
        self._control, self._url = control, f"{url.rstrip('/')}/route"
        self._route, self._ttl_s = route, route.lease_ttl_s
        self._valid_until = 0.0
        self._limiter = LogLimiter(logger)
        self._task: asyncio.Task[None] | None = None

    @property
    def registered(self) -> bool:
        """Whether the row was read back within its time to live."""
        return time.monotonic() < self._valid_until

    def start(self) -> None:
        """Register and go on renewing."""
        self._task = self._control.spawn(self._keep(), "lease")

    async def release(self) -> None:
        """Stop renewing and take the row out."""
        if self._task is not None:
            self._task.cancel()
        self._valid_until = 0.0
        try:
            params = {"incarnation": self._route.incarnation}
            async with self._control.http.delete(self._url, params=params):
                pass
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.info("could not unregister at %s: %s", self._url, error)

    async def _keep(self) -> None:
        while True:
            try:
                began = time.monotonic()
                await self._renew()
                self._valid_until = began + self._ttl_s
                await asyncio.sleep(self._ttl_s / 3)
            except (TransferError, aiohttp.ClientError, TimeoutError, OSError) as error:
                self._limiter.warning("not registered at %s: %s", self._url, error)
                await asyncio.sleep(RETRY_S)

    async def _renew(self) -> None:
        body = msgspec.json.encode(self._route)
        async with self._control.http.put(self._url, data=body) as answer:
            if answer.status != 200:
                raise TransferError(f"HTTP {answer.status}: {(await answer.read())[:500]!r}")
        dp, cp, tp, pp = self._route.rank
        rank = {"prefill_dp_rank": dp, "prefill_cp_rank": cp, "target_tp_rank": tp}
        async with self._control.http.get(self._url, params={**rank, "target_pp_rank": pp}) as got:
            if got.status != 200:
                raise TransferError(f"read back gave HTTP {got.status}")
            found = _address(await got.read())
        if found.incarnation != self._route.incarnation:
            raise TransferError(f"the row belongs to another process, {found.incarnation}")


def _address(body: bytes) -> RankAddress:
    try:
        return msgspec.json.decode(body, type=RankAddress)
    except msgspec.MsgspecError as error:
        raise TransferError(f"read back gave no address: {error}") from error

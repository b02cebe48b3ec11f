"""The last way out of quarantine: writers that cannot be reached lose their access. Control thread.

A machine that lost its network may come back and go on writing, so its pages stay held. Where the
engine can, all regions are opened again under a new session id: what the old one reaches is shut.
Live transfers would break, so it is done when there are none: new ones wait for that, not long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from pd_worker.errors import TransferError
from pd_worker.transfer.control import Control
from pd_worker.transfer.engine import TransferEngine
from pd_worker.transfer.links import Link
from pd_worker.transfer.quarantine import Held

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long pages are held by an unreachable writer before its access is revoked."""


class RenewalHost(Protocol):
    """What a renewal uses of its manager."""

    control: Control

    def revoked(self, engine: TransferEngine) -> None:
        """Writers that know the engine's old session reach nothing any more."""


class Renewal:
    """Renews engines whose unreachable writers hold pages."""

    def __init__(self, host: RenewalHost) -> None:
        self._host = host
        self._wanted: TransferEngine | None = None
        self._running = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def over(self) -> None:
        """Wait until prefills may be told our sessions."""
        await self._idle.wait()

    def tick(
        self,
        now: float,
        held: Iterable[Held],
        engine_of: dict[str, TransferEngine],
        links: Iterable[Link],
        *,
        busy: bool,
    ) -> None:
        """Ask for a renewal where one is due; do it when nothing is `busy` with live transfers."""
        if self._wanted is None:
            self._wanted = _due(now, held, engine_of)
            if self._wanted is None:
                return
            logger.warning("engine=%s access of unreachable writers ends", self._wanted.name)
            self._idle.clear()
            for link in links:
                link.stale = True  # new transfers over it wait
        if not busy and not self._running:
            self._running = True
            self._host.control.spawn(self._renew(self._wanted), "renewal")

    async def _renew(self, engine: TransferEngine) -> None:
        try:
            await asyncio.to_thread(engine.renew)
            self._host.revoked(engine)
        except TransferError as error:
            logger.warning("engine=%s renewal failed: %s", engine.name, error)
        finally:
            self._wanted, self._running = None, False
            self._idle.set()


def _due(
    now: float, held: Iterable[Held], engine_of: dict[str, TransferEngine]
) -> TransferEngine | None:
    """The engine of a writer that has been out of reach for too long."""
    for each in held:
        engine = engine_of.get(each.link.engine)
        waits = each.due == float("inf") and each.link.lost and each.link.unreachable
        if waits and now - each.since > PATIENCE_S and engine is not None and engine.renewable:
            return engine
    return None

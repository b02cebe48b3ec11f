"""Decode's watch over the prefill processes that it is linked to. Control thread only.

A link that is used is pinged twice a second. One that is silent is probed:

    its port is closed, or its shared memory unlocked   it has ended
    its BootstrapServer names another process           it was replaced; ended, unless it listens
    nothing answers for long                            it cannot be reached; it may live
    its port is open                                    it hangs, or has forgotten us: it is greeted
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Protocol

from pd_worker.errors import TransferError
from pd_worker.transfer import wire
from pd_worker.transfer.args import RankAddress
from pd_worker.transfer.control import Control
from pd_worker.transfer.directory import server_info
from pd_worker.transfer.links import Link
from pd_worker.transfer.mailbox import Endpoint
from pd_worker.transfer.probe import Door, knock

logger = logging.getLogger(__name__)

SILENT_S = 2.0
"""After this long without a word a link is probed."""
UNREACHABLE_S = 15.0
"""After this long without any answer its rooms fail."""
FORGET_S = 60.0
"""A link without rooms is pinged and remembered for so long."""


class WatchHost(Protocol):
    """What the watch uses of its manager."""

    control: Control

    @property
    def incarnation(self) -> str:
        """Of this process."""

    def send(self, peer: Endpoint, message: wire.Message) -> None:
        """Queue a message."""

    def gone(self, link: Link) -> bool:
        """Whether the link's engine knows that the process has ended."""

    def greet(self, link: Link) -> None:
        """Register again, in case it has forgotten us."""

    def lost(self, link: Link, what: str) -> None:
        """Nothing more will come of the link: its rooms fail."""

    def ended(self, link: Link) -> None:
        """The process has certainly ended."""

    def dropped(self, link: Link) -> None:
        """Nobody uses the link any more."""


class LinkTable:
    """All links by the incarnation of the process."""

    def __init__(self, host: WatchHost) -> None:
        self._host = host
        self._links: dict[str, Link] = {}

    def __len__(self) -> int:
        return len(self._links)

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._links.values()))

    def get(self, incarnation: str) -> Link | None:
        """The link to a process."""
        return self._links.get(incarnation)

    def heard_of(self, incarnation: str) -> None:
        """A message of that process has come."""
        link = self._links.get(incarnation)
        if link is not None:
            link.heard = time.monotonic()

    def find(self, server: Endpoint, rank: RankAddress) -> Link:
        """The link to a process, made if there is none. Raises TransferError if it has ended."""
        link = self._links.get(rank.incarnation)
        if link is not None and link.dead:
            raise TransferError(f"prefill {link.endpoint} has ended and is still listed")
        if link is not None and link.lost:
            link.lost, link.stale, link.heard = False, True, time.monotonic()
        if link is None:
            endpoint = Endpoint(rank.rank_ip, rank.rank_port)
            now = time.monotonic()
            link = Link(server=server, endpoint=endpoint, incarnation=rank.incarnation, heard=now)
            self._links[rank.incarnation] = link
        link.used = time.monotonic()
        return link

    def lose(self, link: Link, what: str) -> None:
        """Give a link up, once."""
        if not link.lost:
            link.lost = True
            logger.warning("prefill=%s %s", link.endpoint, what)
            self._host.lost(link, what)

    def tick(self, now: float, used: set[Link]) -> None:
        """Ping, probe and forget."""
        for link in self:
            if link in used:
                link.used = now
            elif link.lost or now - link.used > FORGET_S:
                del self._links[link.incarnation]
                self._host.dropped(link)
                continue
            self._host.send(link.endpoint, wire.Ping(sender=self._host.incarnation))
            if now - link.heard > SILENT_S and not link.probing:
                link.probing = True
                self._host.control.spawn(self._probe(link), "probe")

    async def _probe(self, link: Link) -> None:
        try:
            await self._examine(link)
        finally:
            link.probing = False

    async def _examine(self, link: Link) -> None:
        door = Door.CLOSED if self._host.gone(link) else await knock(link.endpoint)
        link.unreachable = door is Door.SILENT
        if door is Door.CLOSED:
            self._end(link, "died")
        elif await self._is_replaced(link):
            self.lose(link, "was replaced by another process")
            if door is Door.SILENT:
                self._end(link, "died")
        elif door is Door.OPEN and link.engine and not link.stale:
            self._host.greet(link)
        elif door is Door.SILENT and time.monotonic() - link.heard > UNREACHABLE_S:
            self.lose(link, "cannot be reached")

    def _end(self, link: Link, what: str) -> None:
        link.dead = True
        self.lose(link, what)
        self._host.ended(link)

    async def _is_replaced(self, link: Link) -> bool:
        try:
            info = await server_info(self._host.control.http, link.server)
        except TransferError:
            return False
        return link.incarnation not in info.incarnations

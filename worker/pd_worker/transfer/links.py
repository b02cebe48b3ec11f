"""Decode's view of prefill processes: `Link` is one process, `PrefillPeer` the place where one is
found, which may be another process tomorrow. Control thread only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from pd_worker.errors import PairingError, TransferError
from pd_worker.transfer import wire
from pd_worker.transfer.args import RankAddress
from pd_worker.transfer.control import Control
from pd_worker.transfer.directory import rank_address, server_info
from pd_worker.transfer.mailbox import Endpoint

logger = logging.getLogger(__name__)

FRESH_S = 2.5
"""A prefill heard of within this time is believed to live."""
RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0)
ACK_TIMEOUT_S = 1.0
MAX_OUTBOX = 256
OUTBOX_TRIES = 5


@dataclass(slots=True, kw_only=True, eq=False)
class Link:
    """One prefill process that we have talked to."""

    server: Endpoint
    """Its BootstrapServer."""
    endpoint: Endpoint
    """Its control socket."""
    incarnation: str
    engine: str = ""
    session: str = ""
    """Engine that it writes with, and the engine's session id there; empty before the ack."""
    heard: float = 0.0
    used: float = 0.0
    probing: bool = False
    unreachable: bool = False
    """Nothing answered at the last probe, not even its machine."""
    stale: bool = False
    """It has to be told our sessions again before it is used."""
    lost: bool = False
    """It was given up, and its rooms have failed; it may be found again."""
    dead: bool = False
    """Its process has certainly ended."""

    @property
    def fresh(self) -> bool:
        """Whether it can be used without looking it up again."""
        known = not self.lost and not self.stale and bool(self.engine)
        return known and time.monotonic() - self.heard < FRESH_S


class Waiter(Protocol):
    """A receiver that waits for its prefill."""

    room: int

    def connected(self, link: Link) -> None:
        """Its prefill is known and has admitted us."""

    def refused(self, reason: str) -> None:
        """Its prefill and we cannot pair."""


class PeerHost(Protocol):
    """What a peer uses of its manager."""

    control: Control

    def link_to(self, server: Endpoint, rank: RankAddress) -> Link:
        """The link to that process, an existing one if there is. Raises TransferError if it has
        ended."""

    async def register(self, link: Link) -> wire.RegisterAck:
        """Send Register and wait for the answer; raises TimeoutError."""

    def replaced(self, link: Link) -> None:
        """Another process has taken the link's place."""

    def send(self, peer: Endpoint, message: wire.Message) -> None:
        """Queue a message."""


class PrefillPeer:
    """A prefill rank by the address of its BootstrapServer."""

    def __init__(self, server: Endpoint, dp_rank: int, host: PeerHost) -> None:
        self.server, self.dp_rank = server, dp_rank
        self.link: Link | None = None
        self.trouble = "it was not looked up yet"
        """Why waiting receivers still wait."""
        self._host = host
        self._waiting: dict[int, Waiter] = {}
        self._outbox: deque[wire.Message] = deque(maxlen=MAX_OUTBOX)
        self._task: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits for it."""
        return not self._waiting and not self._outbox

    def join(self, waiter: Waiter) -> None:
        """Let a receiver wait for this prefill, or connect it at once."""
        if self.link is not None and self.link.fresh:
            waiter.connected(self.link)
        else:
            self._waiting[waiter.room] = waiter
            self._start()

    def leave(self, room: int) -> None:
        """A receiver waits no more."""
        self._waiting.pop(room, None)

    def tell(self, message: wire.Message) -> None:
        """Send a message to whatever process is there now; lost if none is found soon."""
        if self.link is not None and self.link.fresh:
            self._host.send(self.link.endpoint, message)
        else:
            self._outbox.append(message)
            self._start()

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._host.control.spawn(self._connect(), f"connect {self.server}")

    async def _connect(self) -> None:
        tries = 0
        while not self.idle:
            try:
                self.link = await self._introduce()
                break
            except PairingError as error:
                logger.warning("prefill=%s refused: %s", self.server, error)
                self._refuse(str(error))
            except TransferError as error:
                self.trouble = str(error)
                await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1
            if tries >= OUTBOX_TRIES:
                self._outbox.clear()
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting.values():
            assert self.link is not None
            waiter.connected(self.link)

    async def _introduce(self) -> Link:
        """Look the prefill up and register with it."""
        http = self._host.control.http
        info = await server_info(http, self.server)
        rank = await rank_address(http, self.server, self.dp_rank)
        if rank.incarnation not in info.incarnations:
            raise TransferError(f"bootstrap server {self.server}: its ranks are changing")
        link = self._host.link_to(self.server, rank)
        if self.link is not None and self.link is not link:
            self._host.replaced(self.link)
        while self._outbox:
            self._host.send(link.endpoint, self._outbox.popleft())
        try:
            ack = await self._host.register(link)
        except TimeoutError as error:
            raise TransferError(
                f"prefill {link.endpoint}: no RegisterAck within {ACK_TIMEOUT_S:g} s "
                "(is it hanging, or has it another secret?)"
            ) from error
        if ack.refusal:
            raise PairingError(ack.refusal)
        link.engine, link.session, link.stale = ack.engine, ack.session, False
        link.heard = link.used = time.monotonic()
        return link

    def _refuse(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, {}
        self._outbox.clear()
        for waiter in waiting.values():
            waiter.refused(f"prefill {self.server} and this worker cannot pair: {reason}")

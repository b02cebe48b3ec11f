"""Prefill's table of decode processes: who is admitted, through which engine, and who still lives.

Control thread only. A decode with live rooms pings twice a second; a silent one is probed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Protocol

from pd_worker.errors import PairingError
from pd_worker.transfer import wire
from pd_worker.transfer.args import PROTOCOL_VERSION, KVArgs, mismatch
from pd_worker.transfer.control import Control
from pd_worker.transfer.engine import TransferEngine
from pd_worker.transfer.mailbox import Endpoint
from pd_worker.transfer.probe import Door, knock
from pd_worker.transfer.session import Session
from pd_worker.transfer.tally import Tally

logger = logging.getLogger(__name__)

MAX_SESSIONS = 1024
SILENT_S = 2.5
"""Of a decode with live rooms; then its socket is probed."""
UNREACHABLE_S = 15.0
"""After this long without any answer its rooms fail."""
FORGET_S = 10.0
"""Of a decode without rooms here. One that lives registers again when it needs us."""


class SessionHost(Protocol):
    """What the table uses of its manager."""

    control: Control
    tally: Tally

    @property
    def incarnation(self) -> str:
        """Of this process."""

    def ended_session(self, session: Session, reason: str) -> None:
        """A decode process is gone or registered anew: its rooms fail."""


class SessionTable:
    """All sessions by decode's incarnation; control thread only."""

    def __init__(
        self,
        args: KVArgs,
        engines: Mapping[str, TransferEngine],
        host: SessionHost,
    ) -> None:
        self._args, self._engines, self._host = args, engines, host
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def get(self, incarnation: str) -> Session | None:
        """The session, whose process has just been heard of."""
        session = self._sessions.get(incarnation)
        if session is not None:
            session.heard = time.monotonic()
        return session

    def peek(self, incarnation: str) -> Session | None:
        """The session."""
        return self._sessions.get(incarnation)

    def _end_earlier(self, hello: wire.Register) -> None:
        """End an earlier process at the same address, or this one with other sessions."""
        address = Endpoint(hello.host, hello.port)
        for session in self:
            same = session.endpoint == address or session.incarnation == hello.sender
            if same and session.hello != hello:
                self.end(session, "the decode worker registered anew")

    def register(self, hello: wire.Register) -> wire.RegisterAck:
        """Admit a decode process, or say why not. Admitting it again changes nothing."""
        self._end_earlier(hello)
        session = self._sessions.get(hello.sender)
        try:
            if session is None:
                session = self._admit(hello)
        except PairingError as error:
            logger.warning("decode=%s:%d refused: %s", hello.host, hello.port, error)
            return wire.RegisterAck(sender=self._host.incarnation, refusal=str(error))
        session.heard = time.monotonic()
        engine = session.engine
        return wire.RegisterAck(
            sender=self._host.incarnation, engine=engine.name, session=engine.session_id
        )

    def end(self, session: Session, reason: str) -> None:
        """Forget a session; its rooms fail."""
        logger.info("decode=%s dropped: %s", session.endpoint, reason)
        self._sessions.pop(session.incarnation, None)
        self._host.ended_session(session, reason)
        session.end()
        self._host.control.mailbox.drop(session.endpoint)

    def tick(self, now: float, used: set[Session]) -> None:
        """Probe silent sessions that have rooms, forget those that have none."""
        for session in self:
            silent_s = now - session.heard
            if session in used and silent_s > SILENT_S and not session.probing:
                session.probing = True
                self._host.control.spawn(self._probe(session), "probe")
            elif session not in used and silent_s > FORGET_S:
                self.end(session, "the decode worker is idle")

    async def _probe(self, session: Session) -> None:
        try:
            door = Door.CLOSED if session.gone() else await knock(session.endpoint)
        finally:
            session.probing = False
        silent_s = time.monotonic() - session.heard
        if door is Door.CLOSED:
            self.end(session, f"the decode worker {session.endpoint} died")
        elif door is Door.SILENT and silent_s > UNREACHABLE_S:
            self.end(session, f"the decode worker {session.endpoint} cannot be reached")

    def _admit(self, hello: wire.Register) -> Session:
        if hello.version != PROTOCOL_VERSION:
            raise PairingError(
                f"protocol version differs: prefill has {PROTOCOL_VERSION}, "
                f"decode has {hello.version}"
            )
        if hello.target != self._host.incarnation:
            raise PairingError("this prefill worker has restarted; look it up again")
        problem = mismatch(self._args, hello.kv)
        if problem:
            raise PairingError(problem)
        if len(self._sessions) >= MAX_SESSIONS:
            raise PairingError("too many decode workers are registered")
        session = Session(hello, self._choose(hello), self._args, self._host.tally)
        self._sessions[hello.sender] = session
        logger.info("decode=%s registered, engine=%s", session.endpoint, session.engine.name)
        return session

    def _choose(self, hello: wire.Register) -> TransferEngine:
        for name, engine in self._engines.items():
            if engine.reachable(hello.sessions.get(name, "")):
                return engine
        raise PairingError(
            f"no transfer engine in common: prefill has {', '.join(self._engines)}, "
            f"decode has {', '.join(hello.sessions)}, and none of them reaches decode"
        )

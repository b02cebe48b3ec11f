"""Prefill's view of the decode processes that registered: checks, engine choice, and their writers.

A session is made on the control thread; its writer thread copies chunks with the session's engine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from pd_worker.errors import PairingError
from pd_worker.transfer import wire
from pd_worker.transfer.args import PROTOCOL_VERSION, ROOM_NBYTES, KVArgs, mismatch
from pd_worker.transfer.blocks import Blocks, Pages, PageSlice, page_blocks, single
from pd_worker.transfer.engine import TransferEngine
from pd_worker.transfer.mailbox import Endpoint
from pd_worker.transfer.tally import Tally
from pd_worker.transfer.writer import Writer

logger = logging.getLogger(__name__)

WRITE_NBYTES = 16 << 20
"""A write is cut into parts of this size, between which an abort is noticed."""
MAX_SESSIONS = 1024


class ChunkOwner(Protocol):
    """The sender, as its chunks see it; called on the writer thread."""

    @property
    def cancelled(self) -> bool:
        """Whether the rest of the chunk need not be written."""

    def written(self, chunk: Chunk, error: str) -> None:
        """The chunk will not be touched any more; `error` is empty if all of it arrived."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """Pages to copy, and the metadata slots (ours, theirs) that follow the last of them."""

    owner: ChunkOwner
    src_pages: Pages
    dst_pages: Pages
    slots: tuple[int, int] | None


class Session:
    """One registered decode process."""

    def __init__(
        self, hello: wire.Register, engine: TransferEngine, source: KVArgs, tally: Tally
    ) -> None:
        self.hello, self.engine = hello, engine
        self.endpoint = Endpoint(hello.host, hello.port)
        self.incarnation = hello.sender
        self.heard = time.monotonic()
        self.probing = False
        self.over = False
        self._source, self._target = source, hello.kv
        self._remote = hello.sessions[engine.name]
        self._tally = tally
        self._writer: Writer[Chunk] = Writer(f"kv-writer-{self.endpoint}", self._work)

    @property
    def writing(self) -> bool:
        """Whether its writer thread exists."""
        return self._writer.alive

    def put(self, chunk: Chunk) -> bool:
        """Queue a chunk; False once the session has ended."""
        return self._writer.put(chunk)

    def discard(self, owner: ChunkOwner) -> int:
        """Forget the waiting chunks of a sender; returns how many."""
        return self._writer.discard(lambda chunk: chunk.owner is owner)

    def gone(self) -> bool:
        """Whether its process has certainly ended, as far as the engine can tell."""
        return self.engine.gone(self._remote)

    def end(self) -> threading.Thread | None:
        """Take no more chunks; returns the writer thread where there is one."""
        self.over = True
        self.engine.reset(self._remote)
        return self._writer.stop()

    def _work(self, chunk: Chunk) -> None:
        started, error = time.monotonic(), ""
        try:
            self._copy(chunk)
        except Exception as fault:  # the thread's edge: fails this request and no other
            logger.warning("peer=%s write failed: %s", self.endpoint, fault)
            error = f"write to decode {self.endpoint} failed: {fault}"
        if error:
            self.engine.reset(self._remote)
        self._tally.add("kv_transfer_seconds", time.monotonic() - started)
        chunk.owner.written(chunk, error)

    def _copy(self, chunk: Chunk) -> None:
        for blocks in self._plan(chunk):
            if chunk.owner.cancelled:
                return
            self.engine.write(self._remote, blocks.src, blocks.dst, blocks.lengths)
            self._tally.add("kv_transfer_bytes", float(blocks.lengths.sum()))

    def _plan(self, chunk: Chunk) -> Iterator[Blocks]:
        """Pages first, then the metadata slot, and its room number by itself at the very end."""
        part = PageSlice.whole(self._source.page_nbytes)
        step = max(1, WRITE_NBYTES // part.nbytes)
        for start in range(0, chunk.src_pages.size, step):
            yield page_blocks(
                chunk.src_pages[start : start + step],
                chunk.dst_pages[start : start + step],
                src_base=self._source.kv_ptr,
                dst_base=self._target.kv_ptr,
                part=part,
            )
        if chunk.slots is not None:
            nbytes = self._source.meta_slot_nbytes
            src = self._source.meta_ptr + chunk.slots[0] * nbytes
            dst = self._target.meta_ptr + chunk.slots[1] * nbytes
            yield single(src + ROOM_NBYTES, dst + ROOM_NBYTES, nbytes - ROOM_NBYTES)
            yield single(src, dst, ROOM_NBYTES)


class SessionTable:
    """All sessions by decode's incarnation; control thread only."""

    def __init__(
        self,
        args: KVArgs,
        engines: Mapping[str, TransferEngine],
        incarnation: str,
        tally: Tally,
    ) -> None:
        self._args, self._engines = args, engines
        self._incarnation, self._tally = incarnation, tally
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

    def replaced_by(self, hello: wire.Register) -> list[Session]:
        """Sessions of earlier processes at the same address."""
        address = Endpoint(hello.host, hello.port)
        return [s for s in self if s.endpoint == address and s.incarnation != hello.sender]

    def register(self, hello: wire.Register) -> wire.RegisterAck:
        """Admit a decode process, or say why not. Admitting it again changes nothing."""
        session = self._sessions.get(hello.sender)
        try:
            if session is None or session.hello != hello:
                session = self._admit(hello)
        except PairingError as error:
            logger.warning("decode=%s:%d refused: %s", hello.host, hello.port, error)
            return wire.RegisterAck(sender=self._incarnation, refusal=str(error))
        session.heard = time.monotonic()
        engine = session.engine
        return wire.RegisterAck(
            sender=self._incarnation, engine=engine.name, session=engine.session_id
        )

    def remove(self, session: Session) -> None:
        """Forget a session."""
        self._sessions.pop(session.incarnation, None)

    def _admit(self, hello: wire.Register) -> Session:
        if hello.version != PROTOCOL_VERSION:
            raise PairingError(
                f"protocol version differs: prefill has {PROTOCOL_VERSION}, "
                f"decode has {hello.version}"
            )
        if hello.target != self._incarnation:
            raise PairingError("this prefill worker has restarted; look it up again")
        problem = mismatch(self._args, hello.kv)
        if problem:
            raise PairingError(problem)
        if hello.sender in self._sessions:
            raise PairingError("this decode worker has registered otherwise before")
        if len(self._sessions) >= MAX_SESSIONS:
            raise PairingError("too many decode workers are registered")
        session = Session(hello, self._choose(hello), self._args, self._tally)
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

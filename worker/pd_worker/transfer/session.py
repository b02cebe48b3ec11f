"""A decode process as prefill sees it, and the writer thread that copies chunks into its memory."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from pd_worker.transfer import wire
from pd_worker.transfer.args import ROOM_NBYTES, KVArgs
from pd_worker.transfer.blocks import Blocks, Pages, PageSlice, page_blocks, single
from pd_worker.transfer.engine import TransferEngine
from pd_worker.transfer.mailbox import Endpoint
from pd_worker.transfer.tally import Tally
from pd_worker.transfer.writer import Writer

logger = logging.getLogger(__name__)

WRITE_NBYTES = 16 << 20
"""A write is cut into parts of this size, between which an abort is noticed."""


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
        self.engine.reset(self._remote)
        return self._writer.stop()

    def _work(self, chunk: Chunk) -> None:
        started, error = time.monotonic(), ""
        try:
            self._copy(chunk)
        except Exception as fault:  # the thread's edge: fails this request and no other
            logger.warning("peer=%s write failed: %s", self.endpoint, fault)
            error = f"write to decode {self.endpoint} failed: {fault}"
        self._tally.add("kv_transfer_seconds", time.monotonic() - started)
        chunk.owner.written(chunk, error)
        if error:
            self.engine.reset(self._remote)

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

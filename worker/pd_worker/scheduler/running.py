"""RunningBatch: the requests that decode together, and those that had to make room.

When pages run out the youngest request is retracted: its KV moves to the host. It resumes, oldest
first and before anything new is admitted, with the same bytes and so with the same tokens.
"""

from __future__ import annotations

import logging
from bisect import insort
from collections.abc import Iterator

from pd_worker.core.req import Req
from pd_worker.scheduler.request_memory import RequestMemory

log = logging.getLogger(__name__)


class RunningBatch:
    """At most `max_reqs` requests, oldest first; `reserved_tokens` are kept free for each."""

    def __init__(self, memory: RequestMemory, max_reqs: int, reserved_tokens: int) -> None:
        self._memory, self._max_reqs = memory, max_reqs
        self._reserved_tokens = reserved_tokens
        self._reqs: list[Req] = []
        self.retracted: list[Req] = []
        self.num_retractions = 0

    def __repr__(self) -> str:
        return f"RunningBatch({len(self._reqs)} running, {len(self.retracted)} retracted)"

    def __len__(self) -> int:
        return len(self._reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs)

    @property
    def room(self) -> int:
        """Requests that may still join."""
        return self._max_reqs - len(self._reqs)

    @property
    def reserve(self) -> int:
        """Pages to leave free for the growth of those that run."""
        return self._memory.num_pages(self._reserved_tokens * len(self._reqs))

    @property
    def in_flight(self) -> bool:
        """True while a launched step of one of them is not processed."""
        return any(req.in_flight for req in self._reqs)

    def add(self, req: Req) -> None:
        """Let a request decode whose KV and last token are in place."""
        insort(self._reqs, req, key=_created)
        req.enter("decode")

    def withdraw(self, req: Req) -> None:
        """Take an ended request out, if it is here."""
        if req in self._reqs:
            self._reqs.remove(req)
        elif req in self.retracted:
            self.retracted.remove(req)

    def pop_resumed(self) -> list[Req]:
        """Retracted requests that are back in memory; the caller sets their tokens."""
        resumed: list[Req] = []
        while self.retracted and self.room:
            if not self._memory.resume(self.retracted[0], reserve=self.reserve):
                break
            resumed.append(self.retracted.pop(0))
            self.add(resumed[-1])
        return resumed

    def pop_step(self) -> list[Req]:
        """Those that want a token, with room for it; empty also while a result must come first."""
        if any(req.synchronous and req.in_flight for req in self._reqs):
            return []
        reqs = [req for req in self._reqs if _wants_token(req)]
        while reqs and not all(self._memory.grow(req) for req in reqs):
            if self.in_flight:
                return []
            self._retract(reqs.pop())
        return reqs

    def _retract(self, req: Req) -> None:
        log.info("rid=%s room=%d retracted, %d tokens", req.rid, req.room, req.num_computed)
        self._reqs.remove(req)
        self._memory.retract(req)
        insort(self.retracted, req, key=_created)
        self.num_retractions += 1
        req.enter("retracted")


def _created(req: Req) -> float:
    return req.created


def _wants_token(req: Req) -> bool:
    """Counts the tokens that are on their way: with overlap the last may not be here yet."""
    return req.num_computed - req.num_prompt + 1 < req.sampling.max_new_tokens

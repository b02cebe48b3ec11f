"""WaitingQueue: prompts that wait for their EXTEND steps, first come first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pd_worker.core.req import Req
from pd_worker.scheduler.policy import PrefillAdder
from pd_worker.scheduler.request_memory import RequestMemory


class WaitingQueue:
    """Prompts in order of arrival; at most one is partly computed and always goes on first."""

    def __init__(self, memory: RequestMemory, chunked_prefill_size: int) -> None:
        self._memory, self._max_tokens = memory, chunked_prefill_size
        self._reqs: deque[Req] = deque()
        self._chunked: Req | None = None

    def __repr__(self) -> str:
        return f"WaitingQueue({len(self._reqs)} waiting, chunked={self._chunked})"

    def __len__(self) -> int:
        return len(self._reqs) + (self._chunked is not None)

    def __iter__(self) -> Iterator[Req]:
        """Every request in here, the partly computed one first."""
        if self._chunked is not None:
            yield self._chunked
        yield from self._reqs

    def add(self, req: Req) -> None:
        """Queue a request that holds no memory."""
        self._reqs.append(req)

    def withdraw(self, req: Req) -> None:
        """Take an ended request out, if it is here."""
        if self._chunked is req:
            self._chunked = None
        elif req in self._reqs:
            self._reqs.remove(req)

    def pop_chunks(
        self, max_reqs: int, *, admit: bool, reserve: int
    ) -> tuple[list[Req], list[int]]:
        """The requests of the next EXTEND step and how many tokens of each.

        New requests are admitted to memory only if `admit`, and only while `reserve` pages stay
        free for each request that decodes or will; the first that does not fit holds back those
        behind it, so that a large one is not passed over for ever.
        """
        adder = PrefillAdder(self._max_tokens, max_reqs)
        reqs: list[Req] = []
        while adder.open:
            req = self._chunked or (self._pop_admitted(reserve) if admit else None)
            if req is None:
                break
            reqs.append(req)
            req.enter("prefill")
            whole = adder.add(req.num_prompt - req.num_computed)
            self._chunked = None if whole else req
        return reqs, adder.chunks

    def _pop_admitted(self, reserve: int) -> Req | None:
        if not self._reqs:
            return None
        req, reuse = self._reqs[0], not self._reqs[0].message.prompt_logprobs
        if not self._memory.admit(req, reserve=reserve, reuse=reuse):
            return None
        return self._reqs.popleft()

"""Requests whose grammar is being compiled, off the scheduler thread.

A grammar can take long to compile and must not hold back anybody else.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from pd_worker.core.req import Matcher, Req
from pd_worker.core.sampling_params import Grammar
from pd_worker.errors import InvalidRequest, RequestError


class GrammarQueue:
    """`compile_grammar` runs on one thread of its own; `wake` is called when one is done."""

    def __init__(
        self, compile_grammar: Callable[[Grammar], Matcher], wake: Callable[[], None]
    ) -> None:
        self._compile, self._wake = compile_grammar, wake
        self._pool = ThreadPoolExecutor(1, "pdserve-grammar")
        self._pending: list[tuple[Req, Future[Matcher]]] = []

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, req: Req) -> None:
        """Start compiling the grammar of `req`."""
        assert req.sampling.grammar is not None
        future = self._pool.submit(self._compile, req.sampling.grammar)
        future.add_done_callback(lambda _: self._wake())
        self._pending.append((req, future))

    def pop_compiled(self) -> list[tuple[Req, Matcher | RequestError]]:
        """Requests whose grammar is ready, with it or with the reason why there is none."""
        done = [(req, future) for req, future in self._pending if future.done()]
        self._pending = [(req, future) for req, future in self._pending if not future.done()]
        return [(req, _outcome(future)) for req, future in done if not future.cancelled()]

    def withdraw(self, req: Req) -> None:
        """Forget `req`; a compilation that runs is left to end."""
        for pending, future in self._pending:
            if pending is req:
                future.cancel()
        self._pending = [entry for entry in self._pending if entry[0] is not req]

    def close(self) -> None:
        """End the thread, after the grammar in progress; `wake` is not called any more."""
        self._pool.shutdown(cancel_futures=True)


def _outcome(future: Future[Matcher]) -> Matcher | RequestError:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, RequestError):
        return error
    return InvalidRequest(f"the grammar cannot be used: {error}", param="response_format")

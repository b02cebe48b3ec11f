"""A scheduler that answers by script, on the real sockets: what the API process talks to in tests.

It echoes the prompt's ids reversed unless told otherwise, one Output a token, and keeps every
message that it got. Runs on the test's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

import zmq
import zmq.asyncio

from pd_worker.messages import (
    AbortRequest,
    Finish,
    FromScheduler,
    GenerateRequest,
    Heartbeat,
    Output,
    OutputBatch,
    SchedulerReady,
    Shutdown,
    Stage,
    ToScheduler,
    decode_to_scheduler,
    encode,
)

Script = Callable[[GenerateRequest], Iterable[Output]]

READY = SchedulerReady(
    max_total_tokens=4096,
    max_request_tokens=256,
    page_size=16,
    vocab_size=400,
    pairing_key="key-1",
    kv_transports=["shm"],
    facts={"dtype": "float32"},
)


def top(token: int, count: int) -> list[tuple[int, float]]:
    """`count` most probable tokens, the chosen first."""
    return [((token + step) % READY.vocab_size, -0.5 - step) for step in range(count)]


def say(request: GenerateRequest, tokens: list[int], finish: Finish | None = None) -> list[Output]:
    """One Output a token, with scores where they are wanted, cut to max_new_tokens."""
    limit = request.sampling.max_new_tokens
    finish = Finish("length") if len(tokens) >= limit else (finish or Finish("stop"))
    tokens = tokens[:limit]
    wanted = request.num_logprobs
    outputs = [
        Output(
            rid=request.rid,
            token_ids=[token],
            logprobs=[-0.5] if wanted >= 0 else [],
            top_logprobs=[top(token, wanted)] if wanted > 0 else [],
            cached_tokens=3,
            finish=finish if index == len(tokens) - 1 else None,
            prompt_logprobs=prompt_scores(request) if index == 0 else [],
            prompt_top_logprobs=prompt_tops(request) if index == 0 else [],
            stages=[Stage("decode", 1.0, 2.0)] if index == len(tokens) - 1 else [],
        )
        for index, token in enumerate(tokens)
    ]
    return outputs or [
        Output(
            rid=request.rid,
            finish=finish,
            prompt_logprobs=prompt_scores(request),
            prompt_top_logprobs=prompt_tops(request),
        )
    ]


def prompt_scores(request: GenerateRequest) -> list[float | None]:
    """Scores of the prompt's tokens; the first has none."""
    return [None, *(-1.0 for _ in request.input_ids[1:])] if request.prompt_logprobs else []


def prompt_tops(request: GenerateRequest) -> list[list[tuple[int, float]]]:
    """The most probable tokens at the prompt's positions."""
    if not request.prompt_logprobs or request.num_logprobs < 1:
        return []
    return [[], *(top(token, request.num_logprobs) for token in request.input_ids[1:])]


def reverse(request: GenerateRequest) -> list[Output]:
    """The prompt's ids backwards."""
    return say(request, request.input_ids[::-1])


def refuse(status: int, code: str) -> Script:
    """End every request with an error."""
    return lambda request: [
        Output(rid=request.rid, finish=Finish("error", None, status, f"refused: {code}", code))
    ]


def silent(request: GenerateRequest) -> list[Output]:
    """Never answer."""
    return []


class ScriptedScheduler:
    """Connects to the API's two sockets; `script` says what a request is answered."""

    def __init__(self, to_scheduler: str, from_scheduler: str, script: Script = reverse) -> None:
        self.script = script
        self.pause_s = 0.0
        """Between two outputs of a request."""
        self.seen: list[ToScheduler] = []
        self.running: dict[str, asyncio.Task[None]] = {}
        self.exit_code: int | None = None
        self.sent_tokens = 0
        self._endpoints = (to_scheduler, from_scheduler)
        self._context = zmq.asyncio.Context()

    async def __aenter__(self) -> ScriptedScheduler:
        self._inbox = self._context.socket(zmq.PULL)
        self._outbox = self._context.socket(zmq.PUSH)
        for socket, endpoint in zip((self._inbox, self._outbox), self._endpoints, strict=True):
            socket.linger = 0
            socket.connect(endpoint)
        self._task = asyncio.create_task(self._receive())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [self._task, *self.running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=0)

    async def send(self, message: FromScheduler | bytes) -> None:
        """Send a message, or any bytes."""
        await self._outbox.send(message if isinstance(message, bytes) else encode(message))

    async def get_ready(self) -> None:
        """Say that the model is loaded and all is well."""
        await self.send(READY)
        await self.send(Heartbeat(loop_age_s=0.0, gauges={"running": 1.0}, counters={"steps": 2.0}))

    def got(self, kind: type[ToScheduler]) -> list[ToScheduler]:
        """The messages of one kind that have come so far."""
        return [message for message in self.seen if isinstance(message, kind)]

    async def _receive(self) -> None:
        while True:
            message = decode_to_scheduler(await self._inbox.recv())
            self.seen.append(message)
            if isinstance(message, GenerateRequest):
                self.running[message.rid] = asyncio.create_task(self._answer(message))
            elif isinstance(message, AbortRequest) and message.rid in self.running:
                self.running.pop(message.rid).cancel()
            elif isinstance(message, Shutdown):
                self.exit_code = 0

    async def _answer(self, request: GenerateRequest) -> None:
        outputs = list(self.script(request))
        for output in outputs:
            await asyncio.sleep(self.pause_s)
            self.sent_tokens += len(output.token_ids)
            with contextlib.suppress(zmq.ZMQError):
                await self.send(OutputBatch([output]))
        if outputs:
            self.running.pop(request.rid, None)

"""The scheduler: one loop that turns requests into steps of the model runner.

A request's life on the unified role:

1. `add` checks it; its grammar, if any, is compiled aside (GrammarQueue).
2. WaitingQueue: admitted to memory when its turn comes, computed in chunks by EXTEND steps.
3. RunningBatch: one token a DECODE step; may be retracted to the host and resume.
4. `send_output` with a finish, or `end` from outside; `retire` gives its memory back as soon as no
   launched step uses it.

The disaggregated roles override the hooks at the end of the class and nothing else
(disagg/prefill.py, disagg/decode.py). All of it runs on the scheduler thread; only the runner's
`forward` may run beside it (event_loop_overlap).
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import msgspec
import numpy as np

from pd_worker.config import SchedulerConfig
from pd_worker.core.batch import BatchResult, ForwardBatch, ForwardMode, Ints
from pd_worker.core.req import Matcher, Req, failure, finish_after
from pd_worker.errors import IntegrityError, InvalidRequest, QueueFull, RequestError
from pd_worker.messages import (
    AbortRequest,
    Finish,
    FlushCache,
    GenerateRequest,
    Output,
    OutputBatch,
    RejectRoom,
    Shutdown,
    TopLogprobs,
    ToScheduler,
)
from pd_worker.scheduler.batch import ScheduleBatch
from pd_worker.scheduler.channel import Channel
from pd_worker.scheduler.grammar_queue import GrammarQueue
from pd_worker.scheduler.request_memory import RequestMemory
from pd_worker.scheduler.running import RunningBatch
from pd_worker.scheduler.stats import Stats
from pd_worker.scheduler.waiting import WaitingQueue

log = logging.getLogger(__name__)

IDLE_TICK_S = 1.0
"""An idle loop comes round this often, to be seen alive."""


class Runner(Protocol):
    """What the scheduler needs of the model runner."""

    def forward(self, batch: ForwardBatch) -> BatchResult:
        """Run one step; the only method that may be called on another thread."""

    def set_tokens(self, rows: Ints, tokens: Ints) -> None:
        """Set the token that each row's next DECODE step takes as input."""


class Scheduler:
    """Continuous batching with chunked prefill over paged memory, for one rank."""

    def __init__(
        self,
        *,
        config: SchedulerConfig,
        runner: Runner,
        memory: RequestMemory,
        channel: Channel,
        grammars: GrammarQueue,
        eos_ids: tuple[int, ...],
        vocab_size: int,
        max_request_tokens: int,
        reserved_decode_tokens: int,
    ) -> None:
        self.config, self.runner, self.memory = config, runner, memory
        self.channel, self.grammars = channel, grammars
        self.eos_ids, self.vocab_size = eos_ids, vocab_size
        self.max_request_tokens = max_request_tokens
        self.waiting_queue = WaitingQueue(memory, config.chunked_prefill_size)
        self.running = RunningBatch(memory, config.max_running_requests, reserved_decode_tokens)
        self.live: dict[str, Req] = {}
        self.stats = Stats()
        self.loop_time = time.monotonic()
        self.stopping = False
        self._outputs: list[Output] = []
        self._extend_was_last = False
        self._settled = True

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({len(self.live)} live, {self.waiting_queue!r}, "
            f"{self.running!r}, {self.memory!r})"
        )

    # ---- event loops ----

    def event_loop_normal(self) -> None:
        """Receive, schedule, run, process; until Shutdown."""
        worked = False
        while not self.stopping:
            self.receive(0.0 if worked else IDLE_TICK_S)
            worked = self.step()

    def event_loop_overlap(self) -> None:
        """As event_loop_normal, but a step's results are processed while the next one runs."""
        launched: tuple[ScheduleBatch, Future[BatchResult]] | None = None
        worked = False
        with ThreadPoolExecutor(1, "pdserve-device") as device:
            while launched or not self.stopping:
                self.receive(0.0 if worked else IDLE_TICK_S)
                self.advance()
                previous, launched = launched, None
                batch = None if self.stopping else self.next_batch()
                if batch is not None:
                    launched = (batch, device.submit(self._forward, batch.forward))
                if previous is not None:
                    self.process(previous[0], previous[1].result())
                told = self.flush()
                worked = told or previous is not None or launched is not None

    def step(self) -> bool:
        """One round without overlap; False where there was nothing to do."""
        self.advance()
        batch = self.next_batch()
        if batch is not None:
            self.process(batch, self._forward(batch.forward))
        told = self.flush()
        return told or batch is not None

    def _forward(self, batch: ForwardBatch) -> BatchResult:
        began = time.monotonic()
        try:
            return self.runner.forward(batch)
        finally:
            self.stats.counters["busy_seconds"] += time.monotonic() - began

    def receive(self, timeout_s: float) -> None:
        """Take in what the API process sent; waits up to `timeout_s` for something to do."""
        if timeout_s > 0:
            self.check_integrity()
        for message in self.channel.receive(timeout_s):
            self._dispatch(message)
        for req, outcome in self.grammars.pop_compiled():
            self._compiled(req, outcome)
        self.loop_time = time.monotonic()

    def flush(self) -> bool:
        """Send the Outputs of this round in one message; False where there are none.

        Where a request has ended, others may have waited for what it held: another round is due.
        """
        if not self._outputs:
            return False
        self.channel.send(OutputBatch(self._outputs))
        self._outputs = []
        return True

    def _dispatch(self, message: ToScheduler) -> None:
        match message:
            case GenerateRequest():
                self.add(message)
            case AbortRequest(rid=rid, reason=reason):
                if rid in self.live:
                    self.end(self.live[rid], Finish("abort", status=499, message=reason))
            case RejectRoom():
                self.reject(message)
            case FlushCache():
                self.memory.drop_cache()
            case Shutdown():
                self.stopping = True

    # ---- intake ----

    def add(self, message: GenerateRequest) -> None:
        """Take in one request; one that cannot be served ends at once with its reason."""
        req = Req(self.prepare(message))
        try:
            self._validate(req)
        except RequestError as error:
            self._outputs.append(Output(rid=req.rid, finish=failure(error)))
            self.refused(req, error)
            return
        self.live[req.rid] = req
        self._settled = False
        self.stats.received(req)
        req.enter("queue")
        if req.sampling.grammar is None:
            self._enqueue(req)
        else:
            self.grammars.add(req)

    def _validate(self, req: Req) -> None:
        if req.rid in self.live:
            raise InvalidRequest(f"a request with the id {req.rid} is running", param="rid")
        if not req.input_ids:
            raise InvalidRequest("the prompt is empty", param="prompt")
        req.sampling.validate(self.vocab_size)
        if req.num_prompt + req.sampling.max_new_tokens > self.max_request_tokens:
            raise InvalidRequest(
                f"a prompt of {req.num_prompt} tokens and max_new_tokens of "
                f"{req.sampling.max_new_tokens} are more than the {self.max_request_tokens} "
                f"tokens that fit",
                param="max_new_tokens",
            )
        if len(self.live) - len(self.running) >= self.config.max_queued_requests:
            raise QueueFull("the queue is full", retry_after_s=1)

    def _compiled(self, req: Req, outcome: Matcher | RequestError) -> None:
        if isinstance(outcome, RequestError):
            self.end(req, failure(outcome))
        else:
            req.matcher = outcome
            self._enqueue(req)

    def _enqueue(self, req: Req) -> None:
        try:
            self.enqueue(req)
        except RequestError as error:
            self.end(req, failure(error))

    # ---- scheduling ----

    def next_extend(self) -> ScheduleBatch | None:
        """Chunks of prompts, oldest first."""
        reqs, chunks = self.waiting_queue.pop_chunks(
            self.running.room, admit=not self.running.retracted, reserve=self.running.reserve
        )
        if not reqs:
            return None
        batch = self.new_batch(reqs)
        batch.prepare_for_extend(chunks)
        return batch

    def next_decode(self) -> ScheduleBatch | None:
        """One token of every running request that wants one more."""
        for req in self.running.pop_resumed():
            self.set_token(req)
        reqs = self.running.pop_step()
        if not reqs:
            return None
        batch = self.new_batch(reqs)
        batch.prepare_for_decode()
        return batch

    def set_token(self, req: Req) -> None:
        """Tell the runner the last token of a request that it did not draw itself."""
        self.runner.set_tokens(
            np.array([req.row], np.int64), np.array([req.output_ids[-1]], np.int64)
        )

    # ---- results ----

    def process(self, batch: ScheduleBatch, result: BatchResult) -> None:
        """Take in the result of a step."""
        for req in batch.reqs:
            req.in_flight -= 1
        for b, scores in zip(batch.forward.prompt_logprobs, result.prompt, strict=True):
            req = batch.reqs[b]
            req.prompt_logprobs = [*(req.prompt_logprobs or [None]), *scores.logprobs]
            req.prompt_top = [*(req.prompt_top or [[]]), *scores.top]
        for s, b in enumerate(batch.forward.sampled):
            if batch.reqs[b].finish is None:
                top, logprob = result.top[s], float(result.logprobs[s])
                self.take_token(batch.reqs[b], int(result.tokens[s]), logprob, top)
        if batch.mode is ForwardMode.EXTEND:
            for req, end in zip(batch.reqs, batch.forward.seq_lens.tolist(), strict=True):
                if not req.ended_early:
                    self.extended(req, end)
        for req in batch.reqs:
            self.settle(req)

    def take_token(self, req: Req, token: int, logprob: float, top: TopLogprobs) -> None:
        """Append a drawn token and decide whether it is the last.

        With max_new_tokens 0 a token that came from a peer is dropped.
        """
        if req.sampling.max_new_tokens == 0:
            self.deliver(req, self.output(req, finish=Finish("length")))
            return
        req.output_ids.append(token)
        terminated = req.matcher is not None and not advances(req.matcher, token)
        finish = finish_after(token, req.sampling, len(req.output_ids), self.eos_ids, terminated)
        scored = req.message.num_logprobs >= 0
        output = self.output(
            req,
            token_ids=[token],
            logprobs=[logprob] if scored else [],
            top_logprobs=[top] if scored else [],
            finish=finish,
        )
        self.deliver(req, output)

    def output(self, req: Req, **news: object) -> Output:
        """An Output of `req` with `news`; takes along the prompt's scores, once."""
        output = Output(
            rid=req.rid,
            cached_tokens=req.cached_tokens,
            prompt_logprobs=req.prompt_logprobs,
            prompt_top_logprobs=req.prompt_top,
        )
        req.prompt_logprobs, req.prompt_top = [], []
        return msgspec.structs.replace(output, **news)

    def send_output(self, req: Req, output: Output) -> None:
        """Queue an Output; the one that finishes the request is its last."""
        self.stats.generated(req, output)
        if output.finish is not None:
            req.finish = output.finish
            req.enter("")
            output = msgspec.structs.replace(output, stages=req.stages)
            self.live.pop(req.rid, None)
        self._outputs.append(output)

    def end(self, req: Req, finish: Finish) -> None:
        """End a request from outside its own flow: abort, failure, refusal."""
        if req.finish is not None:
            return
        self.send_output(req, self.output(req, finish=finish))
        self.grammars.withdraw(req)
        self.waiting_queue.withdraw(req)
        self.withdraw(req)
        self.settle(req)

    def settle(self, req: Req) -> None:
        """Let go of a request that has ended, once no launched step uses it."""
        if req.finish is not None:
            self.running.withdraw(req)
            if req.in_flight == 0:
                self.retire(req)

    def check_integrity(self) -> None:
        """When the last request is gone: log it if memory is not in order."""
        if self._settled or self.busy():
            return
        self._settled = True
        try:
            self.memory.check_integrity([])
        except IntegrityError:
            log.exception("memory is not in order: %r", self)

    # ---- hooks: here the unified role; the disaggregated ones override them ----

    def new_batch(self, reqs: list[Req]) -> ScheduleBatch:
        """An unprepared batch."""
        return ScheduleBatch(reqs, self.memory, self.vocab_size, self.eos_ids)

    def prepare(self, message: GenerateRequest) -> GenerateRequest:
        """What of a request is this role's to do."""
        return message

    def enqueue(self, req: Req) -> None:
        """Where an accepted request goes first; raises RequestError to refuse it."""
        self.waiting_queue.add(req)

    def advance(self) -> None:
        """Move requests between queues; once a round."""

    def next_batch(self) -> ScheduleBatch | None:
        """The next step; EXTEND and DECODE take turns while both have work."""
        if self._extend_was_last:
            batch = self.next_decode() or self.next_extend()
        else:
            batch = self.next_extend() or self.next_decode()
        self._extend_was_last = batch is not None and batch.mode is ForwardMode.EXTEND
        return batch

    def extended(self, req: Req, end: int) -> None:
        """The first `end` tokens of this request's prompt have been computed."""
        if end < req.num_prompt:
            return
        self.memory.remember(req, req.input_ids)
        if req.sampling.max_new_tokens == 0:
            self.take_token(req, 0, 0.0, [])
        if req.finish is None:
            self.running.add(req)

    def deliver(self, req: Req, output: Output) -> None:
        """Where the results of steps go."""
        self.send_output(req, output)

    def withdraw(self, req: Req) -> None:
        """Take an ended request out of a role's own queues."""

    def refused(self, req: Req, error: RequestError) -> None:
        """A request was refused at intake."""

    def reject(self, message: RejectRoom) -> None:
        """The API process refused a leg of a disaggregated request."""

    def retire(self, req: Req) -> None:
        """The request has ended and no step uses its memory: give it back."""
        if req.row >= 0 and req.prefilled:
            self.memory.remember(req, [*req.input_ids, *req.output_ids][: req.num_computed])
        self.memory.release(req)

    def busy(self) -> bool:
        """True while a request is here, or memory that a peer may still touch."""
        return bool(self.live)

    def gauges(self) -> dict[str, float]:
        """Current values for /metrics and load reports."""
        used = self.memory.num_used_tokens
        return {
            "num_running_reqs": len(self.running),
            "num_waiting_reqs": len(self.waiting_queue) + len(self.grammars),
            "num_retracted_reqs": len(self.running.retracted),
            "kv_used_tokens": used,
            "kv_total_tokens": self.memory.num_total_tokens,
            "kv_usage": used / max(self.memory.num_total_tokens, 1),
            "kv_cached_tokens": self.memory.num_cached_tokens,
        }

    def counters(self) -> dict[str, float]:
        """Running totals for /metrics."""
        return self.stats.counters | {"retracted_requests": self.running.num_retractions}

    def problem(self) -> str:
        """Why /health must be red; empty while all is well."""
        return ""


def advances(matcher: Matcher, token: int) -> bool:
    """Advance a grammar; False where the output ends with this token."""
    if not matcher.accept(token):
        log.error("token %d does not fit its grammar", token)
        return False
    return not matcher.terminated

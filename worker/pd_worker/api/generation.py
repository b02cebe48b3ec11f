"""One HTTP request's samples from submission to the last token.

A `Job` is the request in the engine's terms, whatever the dialect; a `Generation` runs it. The
generation ends exactly once, by leaving its context, and writes the one log line and the metrics
of the request then.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import msgspec

from pd_worker.api.choice import Choice, Delta
from pd_worker.api.context import Context
from pd_worker.api.engine import RETRY_AFTER_S
from pd_worker.api.sampling import sample_seed
from pd_worker.core.sampling_params import SamplingParams
from pd_worker.errors import RequestError, RequestFailed
from pd_worker.messages import Bootstrap, Finish, GenerateRequest, Output, Stage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What one HTTP request asks of the engine; validated."""

    rid: str
    endpoint: str
    prompts: list[list[int]]
    n: int
    sampling: SamplingParams
    num_logprobs: int
    prompt_logprobs: bool
    bootstraps: list[Bootstrap]
    """One for each sample; empty on the unified role."""
    timeline: bool
    """The client wants the stages of the request with the answer."""

    @property
    def num_samples(self) -> int:
        """Samples of all prompts; sample s belongs to prompt s // n."""
        return len(self.prompts) * self.n

    def requests(self, *, prompt_logprobs: bool) -> list[GenerateRequest]:
        """One for each sample."""
        return [
            GenerateRequest(
                rid=self.rid if self.num_samples == 1 else f"{self.rid}.{sample}",
                input_ids=self.prompts[sample // self.n],
                sampling=self._sampling(sample % self.n),
                num_logprobs=self.num_logprobs,
                prompt_logprobs=prompt_logprobs,
                bootstrap=self.bootstraps[sample] if self.bootstraps else None,
            )
            for sample in range(self.num_samples)
        ]

    def _sampling(self, index: int) -> SamplingParams:
        """Each sample has its own seed."""
        return msgspec.structs.replace(self.sampling, seed=sample_seed(self.sampling.seed, index))


class Generation:
    """Runs a job; a context manager. Leaving it early aborts what still runs."""

    def __init__(self, context: Context, job: Job) -> None:
        self.job = job
        role = context.config.role
        self._metrics = context.metrics
        # Only prefill (or unified) ever sees the prompt's logits.
        self.knows_prompt_logprobs = role != "decode"
        self.choices = [
            Choice(sample, job.sampling, context.tokenizer, stop_strings=role != "prefill")
            for sample in range(job.num_samples)
        ]
        wanted = job.prompt_logprobs and self.knows_prompt_logprobs
        self._stream = context.engine.stream(job.rid, job.requests(prompt_logprobs=wanted))
        self._open = set(range(job.num_samples))
        self._began = time.monotonic()
        self.deadline = self._began + context.config.server.request_timeout_s
        self._ttft_s: float | None = None
        self._last_token = [0.0] * job.num_samples
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        """Send the samples; raises RequestError where they cannot be."""
        self._stream.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.__exit__(kind, error, trace)
        self._record(self._how_it_ended(error or self._error))

    def failed(self, error: RequestError) -> None:
        """Note an error that was told to the client inside the context."""
        self._error = error

    @property
    def done(self) -> bool:
        """True when every sample has ended."""
        return not self._open

    @property
    def elapsed_s(self) -> float:
        """Since the request was accepted."""
        return time.monotonic() - self._began

    @property
    def stages(self) -> list[Stage]:
        """Where the time went, of all samples."""
        return [stage for choice in self.choices for stage in choice.tally.stages]

    async def next(self, timeout_s: float) -> list[Delta]:
        """What has come since the last call, waiting for something up to timeout_s; empty then.

        Raises RequestFailed when a sample ends without success; the others are then aborted by
        leaving the context.
        """
        deltas = []
        for sample, output in await self._stream.get(timeout_s):
            if sample in self._open:
                deltas.append(self._feed(sample, output))
        return deltas

    async def complete(self) -> None:
        """Wait for all samples; raises RequestFailed, with 504 past the deadline."""
        while not self.done:
            left_s = self.deadline - time.monotonic()
            if left_s <= 0:
                raise self.overdue()
            await self.next(left_s)

    def overdue(self) -> RequestFailed:
        """504 for a request that lived too long."""
        return RequestFailed(
            f"the request took longer than {self.elapsed_s:.0f} s", status=504, code="timeout"
        )

    def usage(self) -> dict[str, Any]:
        """Token counts so far, in OpenAI's form."""
        prompt = sum(map(len, self.job.prompts))
        completion = sum(len(choice.tally.token_ids) for choice in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens()},
        }

    def _cached_tokens(self) -> int:
        """Of each prompt's first sample: the others reuse what that one computed."""
        return sum(choice.tally.cached_tokens for choice in self.choices[:: self.job.n])

    def _feed(self, sample: int, output: Output) -> Delta:
        if output.finish is not None and _failed(output.finish):
            raise _failure(output.finish)
        delta = self.choices[sample].feed(output)
        if delta.token_ids:
            self._measure(sample, len(delta.token_ids))
        if delta.finished:
            self._open.discard(sample)
            self._stream.end(sample)
        return delta

    def _measure(self, sample: int, num_tokens: int) -> None:
        now = time.monotonic()
        if self._ttft_s is None:
            self._ttft_s = now - self._began
            self._metrics.ttft.observe(self._ttft_s)
        if self._last_token[sample]:
            gap_s = (now - self._last_token[sample]) / num_tokens
            for _ in range(num_tokens):
                self._metrics.itl.observe(gap_s)
        self._last_token[sample] = now

    def _how_it_ended(self, error: BaseException | None) -> str:
        if isinstance(error, RequestError):
            return error.code
        if error is not None or not self.done:
            return "cancelled"
        reasons = {choice.tally.finish.reason for choice in self.choices if choice.tally.finish}
        return next((reason for reason in ("abort", "length") if reason in reasons), "stop")

    def _record(self, finish: str) -> None:
        usage = self.usage()
        self._metrics.count(finish)
        self._metrics.e2e.observe(self.elapsed_s)
        log.info(
            "rid=%s endpoint=%s prompt_tokens=%d completion_tokens=%d finish=%s ttft_ms=%s "
            "total_ms=%.1f",
            self.job.rid,
            self.job.endpoint,
            usage["prompt_tokens"],
            usage["completion_tokens"],
            finish,
            "-" if self._ttft_s is None else f"{self._ttft_s * 1e3:.1f}",
            self.elapsed_s * 1e3,
        )


def _failed(finish: Finish) -> bool:
    return finish.reason == "error" or finish.status >= 400


def _failure(finish: Finish) -> RequestFailed:
    return RequestFailed(
        finish.message or "the request failed",
        status=finish.status if finish.status >= 400 else 500,
        code=finish.code or "internal_error",
        retry_after_s=RETRY_AFTER_S if finish.status in (429, 503) else None,
    )

"""One sample of an answer while it grows: outputs of the scheduler in, text and counts out.

Used by every endpoint, streaming or not. It alone decides where a stop string ends a sample: tokens
after the one that completed it are dropped, so counts and log-probabilities are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from pd_worker.api.detokenizer import StopFinder, TextStream
from pd_worker.api.tokenizer import Tokenizer
from pd_worker.core.sampling_params import SamplingParams
from pd_worker.messages import Finish, Output, Stage, TopLogprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one scheduler output adds to one sample."""

    index: int
    """Of the sample in the answer: prompt * n + sample."""
    text: str
    token_ids: list[int]
    logprobs: list[float]
    top_logprobs: list[TopLogprobs]
    finished: bool
    first: bool
    """True once a sample; prompt log-probabilities are complete then."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Everything a sample has given so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    prompt_logprobs: list[float | None] = field(default_factory=list)
    prompt_top_logprobs: list[TopLogprobs] = field(default_factory=list)
    cached_tokens: int = 0
    stages: list[Stage] = field(default_factory=list)
    finish: Finish | None = None
    matched: int | str | None = None
    """The stop token or stop string that ended the sample."""


class Choice:
    """Turns the outputs of one sample into deltas and keeps their sum."""

    def __init__(
        self, index: int, sampling: SamplingParams, tokenizer: Tokenizer, *, stop_strings: bool
    ) -> None:
        """Without `stop_strings` they are left to the other leg (prefill: ending here would abort
        the transfer that decode waits for)."""
        self.index, self.tally = index, Tally()
        self._sampling = sampling
        self._stream = TextStream(
            partial(tokenizer.decode, skip_special_tokens=sampling.skip_special_tokens)
        )
        stops = sampling.stop if stop_strings else ()
        self._stops = StopFinder(stops, include=sampling.include_stop)
        self._started = False

    def feed(self, output: Output) -> Delta:
        """Take in one output. After a delta that is finished there must be no more."""
        tally = self.tally
        first, self._started = not self._started, True
        if first:
            tally.prompt_logprobs = output.prompt_logprobs
            tally.prompt_top_logprobs = output.prompt_top_logprobs
        tally.cached_tokens = max(tally.cached_tokens, output.cached_tokens)
        text, num_tokens = self._read(output)
        if output.finish is not None:
            tally.stages = output.stages
        delta = Delta(
            index=self.index,
            text=text,
            token_ids=output.token_ids[:num_tokens],
            logprobs=output.logprobs[:num_tokens],
            top_logprobs=output.top_logprobs[:num_tokens],
            finished=tally.finish is not None,
            first=first,
        )
        self._add(delta)
        return delta

    def _read(self, output: Output) -> tuple[str, int]:
        """Text of the output, and how many of its tokens count; sets the finish."""
        text, before = "", len(self.tally.token_ids)
        for count, token in enumerate(output.token_ids, 1):
            new = "" if self._is_matched(output, count) else self._stream.push(token)
            armed = before + count >= self._sampling.min_new_tokens
            certain, stop = self._stops.push(new, armed=armed)
            text += certain
            if stop is not None:
                self.tally.finish, self.tally.matched = Finish("stop"), stop
                return text, count
        if output.finish is not None:
            self.tally.finish, self.tally.matched = output.finish, output.finish.matched
            text += self._rest()
        return text, len(output.token_ids)

    def _is_matched(self, output: Output, count: int) -> bool:
        """True for the stop token that ended the sample, whose text is not part of the answer."""
        return (
            output.finish is not None
            and output.finish.matched is not None
            and count == len(output.token_ids)
            and not self._sampling.include_stop
        )

    def _rest(self) -> str:
        certain, stop = self._stops.push(self._stream.flush())
        if stop is not None:
            self.tally.finish, self.tally.matched = Finish("stop"), stop
            return certain
        return certain + self._stops.flush()

    def _add(self, delta: Delta) -> None:
        self.tally.text += delta.text
        self.tally.token_ids += delta.token_ids
        self.tally.logprobs += delta.logprobs
        self.tally.top_logprobs += delta.top_logprobs

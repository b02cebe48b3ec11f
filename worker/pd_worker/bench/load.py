"""Load on a server: requests with random prompts, sent in the patterns that are measured.

Prompts are lists of random token ids, new ones for every request: a prompt that was seen before
would come out of the prefix cache and measure nothing.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from pd_worker.bench.stats import Record
from pd_worker.client import ServerError, stream
from pd_worker.errors import ConfigError

Groups = dict[str, list[Record]]
"""Records by the name under which they are reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server to measure, and where the ids of prompts are drawn from."""

    session: aiohttp.ClientSession
    url: str
    model: str
    rng: random.Random
    ids: range

    async def send(self, prompt_tokens: int, output_tokens: int) -> Record:
        """One streamed completion, greedy and without an early end; never raises."""
        body = self._body(prompt_tokens, output_tokens)
        record = Record(sent=time.perf_counter())
        try:
            async for event in stream(self.session, f"{self.url}/v1/completions", body):
                _take(record, event)
        except ServerError as error:
            record.error = str(error)
        if not (record.arrivals or record.error):
            record.error = "the answer was empty"
        return record

    def _body(self, prompt_tokens: int, output_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "prompt": self.rng.choices(self.ids, k=prompt_tokens),
            "max_tokens": output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }


def _take(record: Record, event: dict[str, Any]) -> None:
    """Note the arrival of new tokens; some have no text yet, which only usage shows."""
    count = (event.get("usage") or {}).get("completion_tokens", 0)
    text = any(choice.get("text") for choice in event.get("choices", ()))
    if text or count > record.output_tokens:
        record.arrivals.append(time.perf_counter())
    record.output_tokens = max(count, record.output_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadShape:
    """Scenario load: equal requests, so many at a time or so many a second."""

    requests: int = 64
    """Requests in a round."""
    concurrency: int = 8
    """Requests at a time at most."""
    rate: float = 0.0
    """Requests a second on average, with random gaps; 0 sends as fast as --concurrency allows."""
    prompt_tokens: int = 512
    """Length of the prompts."""
    output_tokens: int = 64
    """Length of the answers."""

    def __post_init__(self) -> None:
        _positive(self, "requests", "concurrency", "prompt_tokens", "output_tokens")
        if self.rate < 0:
            raise ConfigError("--rate", "is negative", "use 0 or more")

    async def run(self, target: Target) -> Groups:
        free = asyncio.Semaphore(self.concurrency)

        async def one(delay_s: float) -> Record:
            await asyncio.sleep(delay_s)
            async with free:
                return await target.send(self.prompt_tokens, self.output_tokens)

        return {"requests": await asyncio.gather(*map(one, self._delays(target.rng)))}

    def _delays(self, rng: random.Random) -> list[float]:
        """When each request is sent, seconds from the start."""
        now, delays = 0.0, []
        for _ in range(self.requests):
            delays.append(now)
            now += rng.expovariate(self.rate) if self.rate else 0.0
        return delays


@dataclass(frozen=True, slots=True, kw_only=True)
class InterferenceShape:
    """Scenario interference: running streams, into which long prompts arrive.

    Measured twice: the streams alone, then with the arrivals.
    """

    streams: int = 8
    """Running streams."""
    stream_prompt_tokens: int = 128
    """Length of their prompts."""
    stream_output_tokens: int = 160
    """Length of their answers."""
    arrivals: int = 3
    """Long prompts that arrive meanwhile."""
    arrival_prompt_tokens: int = 2048
    """Length of their prompts."""
    arrival_output_tokens: int = 8
    """Length of their answers."""
    arrival_delay_s: float = 2.5
    """From the start of the streams to the first arrival."""
    arrival_gap_s: float = 3.0
    """From one arrival to the next."""

    def __post_init__(self) -> None:
        _positive(self, "streams", "stream_prompt_tokens", "stream_output_tokens", "arrivals")
        _positive(self, "arrival_prompt_tokens", "arrival_output_tokens")

    async def run(self, target: Target) -> Groups:
        alone = await self._streams(target)
        disturbed, arrivals = await asyncio.gather(self._streams(target), self._arrivals(target))
        return {"streams alone": alone, "streams with arrivals": disturbed, "arrivals": arrivals}

    async def _streams(self, target: Target) -> list[Record]:
        size = (self.stream_prompt_tokens, self.stream_output_tokens)
        return await asyncio.gather(*(target.send(*size) for _ in range(self.streams)))

    async def _arrivals(self, target: Target) -> list[Record]:
        async def one(index: int) -> Record:
            await asyncio.sleep(self.arrival_delay_s + index * self.arrival_gap_s)
            return await target.send(self.arrival_prompt_tokens, self.arrival_output_tokens)

        return await asyncio.gather(*map(one, range(self.arrivals)))


Shape = LoadShape | InterferenceShape


def _positive(shape: object, *names: str) -> None:
    for name in names:
        if getattr(shape, name) < 1:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(flag, "must be at least 1", "give a larger number")


def errors(records: Sequence[Record]) -> list[str]:
    """The different errors of some requests."""
    return sorted({record.error for record in records if record.error})

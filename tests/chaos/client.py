"""How a test asks real workers, waits for them, and finds out what they still hold."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import aiohttp

from tests.chaos.parts import HOST, Part
from tests.e2e.models import VOCAB_SIZE

T = TypeVar("T")
START_S = 300.0
"""A worker imports torch, which takes long on a busy machine."""
BEAT_S = 1.0
"""Gauges are as old as the last heartbeat."""
HELD = (
    "num_running_reqs",
    "num_waiting_reqs",
    "num_retracted_reqs",
    "num_draining_reqs",
    "num_prefill_bootstrap_queue_reqs",
    "num_prefill_inflight_queue_reqs",
    "num_decode_prealloc_queue_reqs",
    "num_decode_transfer_queue_reqs",
    "num_decode_prebuilt_queue_reqs",
    "kv_used_tokens",
    "kv_rooms",
    "kv_early_transfer_infos",
    "kv_draining_rooms",
    "kv_quarantined_rooms",
    "kv_quarantined_pages",
)
"""Gauges that are 0 on a worker without requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a request ended; `status` 0 where the connection broke."""

    status: int
    body: Any
    seconds: float
    headers: dict[str, str]

    @property
    def message(self) -> str:
        return str(self.body["error"]["message"]) if self.status >= 400 else ""


def tokens(count: int, seed: int | None = None) -> list[int]:
    """A prompt that no prefix cache knows, unless it has been asked for by `seed` before."""
    rng = random.Random(seed)
    return [rng.randrange(10, VOCAB_SIZE) for _ in range(count)]


def generate(prompt: list[int], max_tokens: int) -> dict[str, Any]:
    """Body for /generate: greedy, of exactly `max_tokens`."""
    sampling = {"temperature": 0.0, "max_new_tokens": max_tokens, "ignore_eos": True}
    return {"input_ids": prompt, "sampling_params": sampling}


def pd_fields(prefill: Part, room: int | None = None) -> dict[str, Any]:
    """What a router adds to a body."""
    return {
        "bootstrap_host": HOST,
        "bootstrap_port": prefill.bootstrap_port,
        "bootstrap_room": room or random.getrandbits(62) + 1,
    }


async def post(
    session: aiohttp.ClientSession, part: Part, body: Any, path: str = "/generate"
) -> Ended:
    """One request, whatever becomes of it."""
    began = time.monotonic()
    try:
        async with session.post(part.url + path, json=body) as response:
            text = await response.text()
            status, headers = response.status, dict(response.headers)
    except (aiohttp.ClientError, OSError) as error:
        status, headers, text = 0, {}, json.dumps(repr(error))
    seconds = time.monotonic() - began
    return Ended(status=status, body=_value(text), seconds=seconds, headers=headers)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def both(
    session: aiohttp.ClientSession, prefill: Part, decode: Part, body: dict[str, Any]
) -> tuple[Ended, Ended]:
    """Both legs of a request, without a router."""
    body = body | pd_fields(prefill)
    first, second = await asyncio.gather(post(session, prefill, body), post(session, decode, body))
    return first, second


def stretched(limit_s: float) -> float:
    """A limit that holds on a quiet machine, as it has to be on this one now: with n runnable
    processes a core everything takes n times as long."""
    return limit_s * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


async def until(condition: Callable[[], Awaitable[T]], limit_s: float, what: str) -> T:
    """Poll until the condition gives something true, which is returned."""
    deadline = time.monotonic() + stretched(limit_s)
    while not (value := await condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        await asyncio.sleep(0.02)
    return value


async def status(session: aiohttp.ClientSession, part: Part, path: str) -> int:
    """Of a GET; 0 where there is no answer."""
    timeout = aiohttp.ClientTimeout(total=stretched(2))
    try:
        async with session.get(part.url + path, timeout=timeout) as response:
            return response.status
    except (aiohttp.ClientError, OSError, TimeoutError):
        return 0


async def fetch(session: aiohttp.ClientSession, part: Part, path: str) -> Any:
    """The JSON of a GET, whatever its status."""
    async with session.get(part.url + path) as response:
        return await response.json()


async def ready(session: aiohttp.ClientSession, parts: Iterable[Part]) -> None:
    """Wait until all answer /ready with 200."""
    for part in parts:

        async def is_ready(part: Part = part) -> bool:
            assert part.alive, f"{part.name} ended:\n{part.tail()}"
            return await status(session, part, "/ready") == 200

        await until(is_ready, START_S, f"{part.name} is ready")


async def routed(session: aiohttp.ClientSession, router: Part) -> None:
    """Wait until the router uses all its workers; an open breaker wants a request to try."""

    async def usable() -> bool:
        workers = (await fetch(session, router, "/workers"))["workers"]
        if any(worker["breaker"] != "closed" for worker in workers):
            await post(session, router, generate(tokens(9), 1))
            return False
        return all(worker["state"] == "healthy" for worker in workers)

    await until(usable, 30, "the router uses all workers")


async def load(session: aiohttp.ClientSession, part: Part) -> int:
    """Requests that the worker's API serves now."""
    return int((await fetch(session, part, "/get_load"))[0]["num_reqs"])


async def gauges(session: aiohttp.ClientSession, part: Part) -> dict[str, float]:
    """All gauges of a worker by their short name, as of its last heartbeat."""
    async with session.get(f"{part.url}/metrics") as response:
        text = await response.text()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("pdserve_")]
    return {name.split("{")[0].removeprefix("pdserve_"): float(value) for name, value in lines}


async def settled(session: aiohttp.ClientSession, parts: Iterable[Part], limit_s: float) -> None:
    """Wait until a heartbeat from now on says that nothing is held; asserts that it comes within
    `limit_s` and the beat."""

    async def one(part: Part) -> None:
        stale = (await gauges(session, part))["loop_age_seconds"]
        held: dict[str, float] = {}

        async def empty() -> bool:
            nonlocal held
            found = await gauges(session, part)
            held = {name: found[name] for name in HELD if found.get(name)}
            return found["loop_age_seconds"] != stale and not held

        try:
            await until(empty, limit_s + BEAT_S, f"{part.name} is idle")
        except AssertionError as error:
            raise AssertionError(f"{error}; it holds {held}") from None

    await asyncio.gather(*(one(part) for part in parts))


@dataclass(slots=True)
class Stream:
    """Events of a streamed completion, as they come."""

    events: list[Any] = field(default_factory=list)
    at: list[float] = field(default_factory=list)
    done: int = 0
    broken: str = ""

    @property
    def error(self) -> Any:
        """The error event, if there was one."""
        return next((event["error"] for event in self.events if "error" in event), None)

    @property
    def finish(self) -> str | None:
        """Reason of the regular end, if there was one."""
        found = [c["finish_reason"] for e in self.events for c in e.get("choices", [])]
        return next((reason for reason in found if reason), None)

    @property
    def longest_gap_s(self) -> float:
        return max(b - a for a, b in zip(self.at, self.at[1:], strict=False))

    async def follow(
        self, session: aiohttp.ClientSession, part: Part, body: dict[str, Any]
    ) -> Stream:
        """Run it through a router, or on a decode worker whose other leg somebody else sends."""
        body = {"model": "tiny", "stream": True, "temperature": 0, "ignore_eos": True, **body}
        try:
            async with session.post(f"{part.url}/v1/completions", json=body) as response:
                if response.status != 200:
                    self.events.append(await response.json())
                async for line in response.content:
                    self._take(line)
        except (aiohttp.ClientError, OSError) as error:
            self.broken = repr(error)
        return self

    def _take(self, line: bytes) -> None:
        if line.startswith(b"data: [DONE]"):
            self.done += 1
        elif line.startswith(b"data: "):
            self.events.append(json.loads(line[6:]))
            self.at.append(time.monotonic())


@asynccontextmanager
async def repeated(action: Callable[[], Awaitable[T]]) -> AsyncIterator[list[T]]:
    """Do it again and again while the block runs; the list gets the results."""
    results: list[T] = []

    async def work() -> None:
        while True:
            results.append(await action())
            await asyncio.sleep(0.02)

    task = asyncio.create_task(work())
    try:
        yield results
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

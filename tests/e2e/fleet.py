"""Real workers for end-to-end tests: `pdserve up` in a process of its own, asked over HTTP."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

START_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """A running `pdserve up`."""

    url: str
    process: subprocess.Popen[str]
    log_dir: Path
    lines: list[str]

    def logs(self) -> str:
        """Everything that its parts wrote."""
        return "\n".join(
            f"== {path.name}\n{path.read_text()}" for path in sorted(self.log_dir.glob("*.log"))
        )

    def worker_urls(self, role: str) -> list[str]:
        """Addresses of the workers of a role, as `up` printed them."""
        pattern = re.compile(rf"{role}-\d+\s.*?(http://\S+)")
        return [found[1] for line in self.lines if (found := pattern.search(line))]


@contextmanager
def up(model: Path, log_dir: Path, *args: str) -> Iterator[Up]:
    """Start `pdserve up` on a free port, wait until it is ready, stop it with SIGTERM."""
    command = [sys.executable, "-m", "pd_worker.cli", "up", "--model", str(model), "--port", "0"]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [*command, "--log-dir", str(log_dir), "--no-pin-cores", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )
    try:
        lines = _read_until_ready(process)
        url = lines[-1].split()[-1]
        running = Up(url=url, process=process, log_dir=log_dir, lines=lines)
        yield running
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, running.logs()
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def _read_until_ready(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if line.startswith("ready "):
            return lines
    raise AssertionError("pdserve up ended before it was ready:\n" + "\n".join(lines))


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A greedy completion of a prompt of token ids."""

    prompt: list[int]
    max_tokens: int
    extra: dict[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """For POST /generate."""
        return {
            "input_ids": self.prompt,
            "sampling_params": {
                "temperature": 0.0,
                "max_new_tokens": self.max_tokens,
                **self.extra,
            },
            "return_logprob": True,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What /generate answered, in plain values."""

    token_ids: list[int]
    logprobs: list[float]
    finish: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


async def ask(session: aiohttp.ClientSession, url: str, case: Case) -> Reply:
    """One request; raises AssertionError with the body of any status but 200."""
    async with session.post(f"{url}/generate", json=case.body()) as response:
        text = await response.text()
        assert response.status == 200, text
        answer = await response.json()
    meta = answer["meta_info"]
    return Reply(
        token_ids=answer["output_ids"],
        logprobs=[entry[0] for entry in meta["output_token_logprobs"]],
        finish=meta["finish_reason"]["type"],
        prompt_tokens=meta["prompt_tokens"],
        completion_tokens=meta["completion_tokens"],
        cached_tokens=meta["cached_tokens"],
    )


def ask_all(url: str, cases: Sequence[Case], concurrency: int) -> list[Reply]:
    """All cases, at most `concurrency` at a time, answers in order."""

    async def run() -> list[Reply]:
        gate = asyncio.Semaphore(concurrency)
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(timeout=timeout) as session:

            async def one(case: Case) -> Reply:
                async with gate:
                    return await ask(session, url, case)

            return await asyncio.gather(*(one(case) for case in cases))

    return asyncio.run(run())

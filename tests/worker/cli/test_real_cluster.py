"""`pdserve up` and `pdserve demo` with real parts and the small real model."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from openai import AsyncOpenAI

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]

OPTIONS = ["--model", "smollm2-135m", "--port", "0", "--max-total-tokens", "4096"]


async def start(*words: str) -> Process:
    command = [sys.executable, "-u", "-m", "pd_worker.cli", *words]
    return await asyncio.create_subprocess_exec(*command, stdout=PIPE)


def shared_memory(processes: list[psutil.Process]) -> set[str]:
    """Files of shared memory that these processes have mapped."""
    maps = [each.path for process in processes for each in process.memory_maps()]
    return {path for path in maps if path.startswith("/dev/shm/pdserve-")}


@pytest.fixture
async def up() -> AsyncIterator[tuple[Process, str]]:
    """A running pair and its URL."""
    process = await start("up", *OPTIONS)
    assert process.stdout
    async for line in process.stdout:
        if line.startswith(b"ready "):
            break
    yield process, line.split()[1].decode()
    if process.returncode is None:
        process.kill()
        await process.wait()


def existing(paths: set[str]) -> list[str]:
    return [path for path in paths if Path(path).exists()]


async def ask(url: str) -> str:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="-") as client:
        answer = await client.chat.completions.create(
            model="smollm2-135m",
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            temperature=0,
            max_tokens=20,
        )
    return answer.choices[0].message.content or ""


async def test_pair_answers_and_leaves_nothing_behind(up: tuple[Process, str]) -> None:
    process, url = up
    children = psutil.Process(process.pid).children(recursive=True)
    shared = shared_memory(children)
    assert "Paris" in await ask(url)
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 60) == 0
    assert not [child for child in children if child.is_running()]
    assert shared
    assert not existing(shared)


async def test_demo_answers_and_draws_both_legs() -> None:
    process = await start("demo", "--max-tokens", "8", *OPTIONS)
    out = (await process.communicate())[0].decode()
    assert process.returncode == 0, out
    rows = [line.split("|")[0].split() for line in out.splitlines() if "|" in line]
    assert {"bootstrap", "prefill", "transfer", "decode", "token"} <= {
        row[-1] for row in rows if row
    }
    assert "8 tokens in" in out

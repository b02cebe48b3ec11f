"""The public routers of the field before our two workers, started as their own docs say for PD.

Their answers are compared with our own router's in front of the same pair. Each package lives in an
environment of its own in the cache, made once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from pd_worker.config import cache_dir
from pd_worker.local.ports import free_ports
from tests.e2e.fleet import Up, up
from tests.e2e.models import save_tiny_llama

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

START_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A router from the package index."""

    name: str
    version: str
    command: tuple[str, ...]
    """Behind the environment's bin folder."""

    @property
    def home(self) -> Path:
        return cache_dir() / "peers" / f"{self.name}-{self.version}"


PACKAGES = [
    Package(
        name="sglang-router",
        version="0.3.2",
        command=("python", "-m", "sglang_router.launch_router"),
    ),
    Package(name="smg", version="1.13.0", command=("smg", "launch")),
]


def find_uv() -> str:
    """The uv that scripts/setup.sh takes."""
    return shutil.which("uv") or str(cache_dir() / "uv" / "bin" / "uv")


def install(package: Package) -> None:
    """Make its environment unless it is there; skips the test where that cannot be done."""
    python = package.home / "bin" / "python"
    wanted = f"{package.name}=={package.version}"
    steps = [
        *([] if python.exists() else [["venv", "-q", "--python", "3.11", str(package.home)]]),
        ["pip", "install", "-q", "--python", str(python), wanted],
    ]
    for step in steps:
        try:
            done = subprocess.run([find_uv(), *step], capture_output=True, text=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"{wanted} cannot be installed: {error}")
        if done.returncode:
            pytest.skip(f"{wanted} cannot be installed: {done.stderr.strip()[-300:]}")


@contextmanager
def public_router(package: Package, pair: Up, folder: Path) -> Iterator[str]:
    """Start it in front of the pair; gives its URL once it serves."""
    (prefill,), (decode,) = pair.worker_urls("prefill"), pair.worker_urls("decode")
    port, prometheus = free_ports(2)
    bootstrap = str(get(f"{prefill}/server_info")["bootstrap_port"])
    program, *rest = package.command
    command = [str(package.home / "bin" / program), *rest, "--pd-disaggregation"]
    command += ["--prefill", prefill, bootstrap, "--decode", decode]
    command += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(prometheus)]
    log = folder / f"{package.name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_it_serves(url, process, log)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def get(url: str) -> Any:
    """The JSON of a GET."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def wait_until_it_serves(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Both workers are registered there when a request comes through."""
    deadline = time.monotonic() + START_S
    body = json.dumps({"model": "m", "prompt": "hi", "max_tokens": 1}).encode()
    headers = {"Content-Type": "application/json"}
    while True:
        try:
            request = urllib.request.Request(f"{url}/v1/completions", body, headers)
            with urllib.request.urlopen(request, timeout=20):
                return
        except (urllib.error.URLError, OSError):
            text = log.read_text(errors="replace")[-3000:]
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.2)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("public-routers")
    model = save_tiny_llama(folder / "m")
    with up(model, folder, "--dtype", "float32", "--max-total-tokens", "8192") as running:
        yield running


@pytest.fixture(scope="module", params=PACKAGES, ids=lambda package: package.name)
def theirs(request, pair, tmp_path_factory) -> Iterator[openai.OpenAI]:
    install(request.param)
    folder = tmp_path_factory.mktemp(request.param.name)
    with public_router(request.param, pair, folder) as url, client(url) as found:
        yield found


@pytest.fixture(scope="module")
def ours(pair) -> Iterator[openai.OpenAI]:
    with client(pair.url) as found:
        yield found


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


MESSAGES = [{"role": "user", "content": "What are prefill and decode?"}]
GREEDY: dict[str, Any] = {"model": "m", "temperature": 0.0, "max_tokens": 24}


def test_chat_is_answered_like_by_our_router(ours, theirs):
    answers = [
        router.chat.completions.create(messages=MESSAGES, **GREEDY) for router in (ours, theirs)
    ]
    found = [
        (each.choices[0].message.content, each.choices[0].finish_reason, each.usage.total_tokens)
        for each in answers
    ]
    assert found[0][0]
    assert found[0] == found[1]


def test_streamed_chat_is_answered_like_by_our_router(ours, theirs):
    found = []
    for router in (ours, theirs):
        stream = router.chat.completions.create(
            messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
        chunks = list(stream)
        choices = [choice for chunk in chunks for choice in chunk.choices]
        text = "".join(choice.delta.content or "" for choice in choices)
        ends = [choice.finish_reason for choice in choices if choice.finish_reason]
        usages = [chunk.usage.total_tokens for chunk in chunks if chunk.usage]
        found.append((text, ends, usages))
    assert found[0][0]
    assert found[0] == found[1]


def test_a_batch_of_completions_is_answered_like_by_our_router(ours, theirs):
    prompts = ["one request", "the cache moves once", "decode " * 60]
    answers = [
        router.completions.create(prompt=prompts, **GREEDY).choices for router in (ours, theirs)
    ]
    found = [[(choice.index, choice.text) for choice in choices] for choices in answers]
    assert [index for index, _ in found[0]] == [0, 1, 2]
    assert found[0] == found[1]


def test_two_samples_are_answered_like_by_our_router(ours, theirs):
    answers = [
        router.completions.create(prompt="two phases", n=2, **GREEDY).choices
        for router in (ours, theirs)
    ]
    found = [sorted((choice.index, choice.text) for choice in choices) for choices in answers]
    assert [index for index, _ in found[0]] == [0, 1]
    assert found[0] == found[1]

"""Mixed load with aborts on a local cluster, and what it leaves behind.

    .venv/bin/python -m tests.e2e.soak --minutes 10        prints a table, exits 1 where it grew

One fifth of the requests are dropped by the client at a random moment; the rest are short and long
prompts, streamed and not, sampled and greedy, n of 1 or 2. Resources are compared idle to idle:
after a warm-up of the same load, and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import aiohttp
import psutil

from tests.e2e.fleet import Up, up
from tests.e2e.models import VOCAB_SIZE, save_tiny_llama

SETTLED_GAUGES = (
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
)


def _prompts(count: int) -> list[list[int]]:
    rng = random.Random(0)
    lengths = [int(rng.choice([rng.uniform(1, 50), rng.uniform(1, 900)])) for _ in range(count)]
    return [[rng.randrange(10, VOCAB_SIZE) for _ in range(length)] for length in lengths]


PROMPTS = _prompts(400)
"""Few enough that the warm-up fills every cache that is filled by prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Of one process."""

    rss_mb: float
    threads: int
    files: int
    sockets: int


def resources(root: psutil.Process) -> dict[str, Resources]:
    """Every process below `root`, by a name that stays the same."""
    found: dict[str, Resources] = {}
    for process in root.children(recursive=True):
        words = process.cmdline()
        role = words[words.index("--role") + 1] if "--role" in words else ""
        if "router" in words:
            role = "router"
        if not role:
            parent = process.parent()
            above = parent.cmdline() if parent else []
            if "--role" not in above or "resource_tracker" in " ".join(words):
                continue
            role = above[above.index("--role") + 1] + " scheduler"
        files = list(Path(f"/proc/{process.pid}/fd").iterdir())
        targets = [str(path.readlink()) for path in files if path.is_symlink()]
        found[role] = Resources(
            rss_mb=process.memory_info().rss / 2**20,
            threads=process.num_threads(),
            files=len(targets),
            sockets=sum(target.startswith("socket:") for target in targets),
        )
    return found


async def gauges(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Values of SETTLED_GAUGES on one worker."""
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    values = {}
    for line in text.splitlines():
        name = line.split("{")[0].split(" ")[0].removeprefix("pdserve_")
        if name in SETTLED_GAUGES:
            values[name] = float(line.rsplit(" ", 1)[1])
    return values


async def settle(urls: list[str], timeout_s: float = 30.0) -> dict[str, dict[str, float]]:
    """Wait until nothing is left on any worker; returns the last values either way."""
    deadline = time.monotonic() + timeout_s
    async with aiohttp.ClientSession() as session:
        while True:
            values = {url: await gauges(session, url) for url in urls}
            held = [value for each in values.values() for value in each.values() if value]
            if not held or time.monotonic() > deadline:
                return values
            await asyncio.sleep(0.5)


async def one(session: aiohttp.ClientSession, url: str, rng: random.Random) -> str:
    """One random request; says how it ended."""
    body = {
        "model": "tiny",
        "prompt": rng.choice(PROMPTS),
        "max_tokens": rng.choice([1, 8, 40, 100]),
        "temperature": rng.choice([0.0, 1.0]),
        "n": rng.choice([1, 1, 1, 2]),
        "stream": rng.random() < 0.6,
        "ignore_eos": True,
    }
    if rng.random() < 0.2:
        try:
            async with asyncio.timeout(rng.uniform(0.0, 0.4)):
                await _send(session, url, body)
        except TimeoutError:
            return "aborted"
        return "done before its abort"
    return await _send(session, url, body)


async def _send(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> str:
    async with session.post(f"{url}/v1/completions", json=body) as response:
        text = await response.text()
        if response.status != 200:
            return f"status {response.status}: {text[:200]}"
        if body["stream"] and "data: [DONE]" not in text:
            return f"cut off: {text[-200:]}"
        return "done"


async def load(url: str, seconds: float, concurrency: int, seed: int) -> Counter[str]:
    """Keep `concurrency` random requests going for so long."""
    ends: Counter[str] = Counter()
    deadline = time.monotonic() + seconds

    async def client(index: int) -> None:
        rng = random.Random(seed * 1000 + index)
        while time.monotonic() < deadline:
            ends[await one(session, url, rng)] += 1

    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await asyncio.gather(*(client(index) for index in range(concurrency)))
    return ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Soaked:
    """Result of a soak."""

    before: dict[str, Resources]
    after: dict[str, Resources]
    held: dict[str, dict[str, float]]
    ends: Counter[str]


def soak(pair: Up, seconds: float, warm_up_s: float, concurrency: int) -> Soaked:
    """Warm up, measure idle, load, measure idle."""
    root = psutil.Process(pair.process.pid)
    urls = pair.worker_urls("prefill") + pair.worker_urls("decode")
    asyncio.run(load(pair.url, warm_up_s, concurrency, seed=1))
    asyncio.run(settle(urls))
    before = resources(root)
    ends = asyncio.run(load(pair.url, seconds, concurrency, seed=2))
    held = asyncio.run(settle(urls))
    return Soaked(before=before, after=resources(root), held=held, ends=ends)


def growth(soaked: Soaked, rss_share: float) -> list[str]:
    """What is not back at its baseline, in words."""
    faults = [
        f"{url} still holds {name} = {value}"
        for url, values in soaked.held.items()
        for name, value in values.items()
        if value
    ]
    faults += [f"{count} x {end}" for end, count in soaked.ends.items() if end.startswith("status")]
    faults += [f"{count} x {end}" for end, count in soaked.ends.items() if end.startswith("cut")]
    for name, before in soaked.before.items():
        after = soaked.after[name]
        if abs(after.rss_mb - before.rss_mb) > rss_share * before.rss_mb:
            faults.append(f"{name}: RSS {before.rss_mb:.1f} -> {after.rss_mb:.1f} MiB")
        for what in ("threads", "files", "sockets"):
            if getattr(after, what) > getattr(before, what) + 3:
                faults.append(f"{name}: {what} {getattr(before, what)} -> {getattr(after, what)}")
    return faults


def main() -> int:
    """Run a soak from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--warm-up-minutes", type=float, default=2.0)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--kv-transport", default="auto")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny_llama(Path(folder))
        args = ("--kv-transport", options.kv_transport, "--max-total-tokens", "16384")
        with up(model, Path(folder), *args) as pair:
            soaked = soak(
                pair, options.minutes * 60, options.warm_up_minutes * 60, options.concurrency
            )
    print(dict(soaked.ends))
    for name, before in soaked.before.items():
        print(f"{name:20} {asdict(before)}\n{'':20} {asdict(soaked.after[name])}")
    faults = growth(soaked, rss_share=0.02)
    print("\n".join(faults) or "all at baseline")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())

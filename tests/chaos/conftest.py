"""Two prefill workers, a decode worker and a router, shared by all tests and mended before each."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from tests.chaos.client import both, generate, ready, routed, settled, tokens
from tests.chaos.parts import Part, router, worker
from tests.e2e.models import save_tiny_llama

CONTEXT = 8192
PREFILL_POOL, SMALL_PREFILL_POOL, DECODE_POOL = 32768, 2048, 4096
"""Tokens: between two of them a prompt fits one worker of a pair and not the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """`prefill` has a large pool, `other` a small one, decode's lies between."""

    prefill: Part
    other: Part
    decode: Part
    router: Part

    @property
    def workers(self) -> list[Part]:
        return [self.prefill, self.other, self.decode]


def save_model(folder: Path, seed: int = 0) -> Path:
    """The tiny Llama with a longer context, which its rotary positions need not be taught."""
    save_tiny_llama(folder, seed)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"max_position_embeddings": CONTEXT}
    path.write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def chaos_model(tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("chaos") / "tiny")


@pytest.fixture(scope="session")
def all_workers(chaos_model, tmp_path_factory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("chaos-logs")

    def pool(tokens: int) -> tuple[str, str]:
        return "--max-total-tokens", str(tokens)

    prefill = worker("prefill", chaos_model, folder, *pool(PREFILL_POOL))
    other = worker("prefill", chaos_model, folder, *pool(SMALL_PREFILL_POOL), name="other")
    decode = worker("decode", chaos_model, folder, *pool(DECODE_POOL))
    front = router([prefill, other], [decode], folder)
    fleet = Fleet(prefill=prefill, other=other, decode=decode, router=front)
    try:
        yield fleet
    finally:
        for part in [*fleet.workers, front]:
            part.end()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield session


@pytest.fixture
async def fleet(all_workers, session) -> Fleet:
    """All parts run, know each other and hold nothing."""
    parts = [*all_workers.workers, all_workers.router]
    for part in parts:
        if part.alive:
            part.signal_all(signal.SIGCONT)
        else:
            part.end()
            part.start()
    await ready(session, parts)
    await routed(session, all_workers.router)
    for prefill in (all_workers.prefill, all_workers.other):
        legs = await both(session, prefill, all_workers.decode, generate(tokens(20), 2))
        assert [leg.status for leg in legs] == [200, 200], legs
    await asyncio.gather(settled(session, all_workers.workers, 10))
    return all_workers

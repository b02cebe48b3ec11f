"""Whole requests between a prefill and a decode manager."""

from __future__ import annotations

import pytest

from tests.worker.transfer.conftest import Factory
from tests.worker.transfer.harness import CANARY, NUM_PAGES, Decode, Prefill, options, transfer


@pytest.mark.parametrize("kind", ["shm", "mooncake"])
@pytest.mark.parametrize("chunk", [1, 2, 3])
def test_chunks_arrive_in_their_pages_and_nowhere_else(
    kind: str, chunk: int, start_prefill: Factory, start_decode: Factory
) -> None:
    prefill, decode = start_prefill(kind=kind), start_decode(kind=kind)
    transfer(prefill, decode, 77, dst=(5, 6, 9), chunk=chunk)
    untouched = [page for page in range(NUM_PAGES) if page not in (5, 6, 9)]
    assert all((decode.pool.page(page) == CANARY).all() for page in untouched)


def test_rooms_follow_each_other_over_one_registration(prefill: Prefill, decode: Decode) -> None:
    for room in range(1, 101):
        transfer(prefill, decode, room)
    assert prefill.manager.gauges()["kv_sessions"] == 1
    assert prefill.manager.gauges()["kv_rooms"] == decode.manager.gauges()["kv_rooms"] == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("secret", ["", "s3cret"], ids=["open", "secret"])
def test_hosts_and_secrets(
    host: str, secret: str, start_prefill: Factory, start_decode: Factory
) -> None:
    prefill = start_prefill(link=options(host=host, secret=secret))
    decode = start_decode(link=options(host=host, secret=secret))
    transfer(prefill, decode, 1)

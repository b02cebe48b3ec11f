"""A short soak (soak.py runs the long one): load with aborts leaves nothing behind."""

from __future__ import annotations

import pytest

from tests.e2e.fleet import up
from tests.e2e.soak import growth, soak


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shm", "mooncake"])
def test_load_with_aborts_leaves_nothing_behind(transport, tiny_model, tmp_path):
    args = ("--kv-transport", transport, "--max-total-tokens", "16384")
    with up(tiny_model, tmp_path, *args) as pair:
        soaked = soak(pair, seconds=25, warm_up_s=15, concurrency=8)
    assert growth(soaked, rss_share=0.1) == []
    assert soaked.ends["aborted"] > 10
    assert soaked.ends["done"] > 50

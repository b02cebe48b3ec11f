"""Workers that do not fit each other are told so, by name, and nobody else suffers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.chaos.client import (
    both,
    fetch,
    generate,
    ready,
    settled,
    status,
    stretched,
    tokens,
    until,
)
from tests.chaos.conftest import save_model
from tests.chaos.parts import Part, router, worker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOLD_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Odd:
    """A decode worker that differs in one setting, and what both have of it."""

    setting: str
    args: tuple[str, ...] = ()
    seed: int = 0
    values: tuple[str, str] = ("", "")


ODD = [
    Odd(setting="page_size", args=("--page-size", "1"), values=("16", "1")),
    Odd(setting="kv_dtype", args=("--dtype", "bfloat16"), values=("'float32'", "'bfloat16'")),
    Odd(setting="kv_checksum", args=("--kv-checksum",), values=("False", "True")),
    Odd(setting="model", seed=1),
]
CASES = pytest.mark.parametrize("odd", ODD, ids=lambda odd: odd.setting)


@pytest.fixture(scope="module")
def decodes(chaos_model, tmp_path_factory) -> Iterator[dict[str, Part]]:
    """One odd decode worker a setting."""
    folder = tmp_path_factory.mktemp("odd")
    models = {0: chaos_model, 1: save_model(folder / "tiny", seed=1)}
    parts = {
        odd.setting: worker(
            "decode",
            models[odd.seed],
            folder,
            "--max-total-tokens",
            "2048",
            *odd.args,
            name=odd.setting,
        )
        for odd in ODD
    }
    for part in parts.values():
        part.start()
    yield parts
    for part in parts.values():
        part.end()


@CASES
async def test_a_forced_pair_fails_and_names_the_setting(fleet, session, decodes, odd):
    stranger = decodes[odd.setting]
    await ready(session, [stranger])
    legs = await both(session, fleet.prefill, stranger, generate(tokens(20), 3))
    for leg in legs:
        assert leg.status >= 500
        assert leg.seconds < stretched(TOLD_S)
        assert f"{odd.setting} differs" in leg.message
        assert all(value in leg.message for value in odd.values)
    await settled(session, [fleet.prefill, stranger], 2)
    for part in (fleet.prefill, stranger):
        assert await status(session, part, "/health") == 200
    again = await both(session, fleet.prefill, fleet.decode, generate(tokens(20), 3))
    assert [leg.status for leg in again] == [200, 200]


@CASES
async def test_the_router_says_which_keys_differ(fleet, session, decodes, odd, tmp_path):
    stranger = decodes[odd.setting]
    await ready(session, [stranger])
    pair = (fleet.prefill, stranger)
    keys = [(await fetch(session, part, "/server_info"))["pairing_key"] for part in pair]
    assert keys[0] != keys[1]
    front = router([fleet.prefill], [stranger], tmp_path)
    front.start()
    try:

        async def told() -> str:
            if await status(session, front, "/ready") != 503:
                return ""
            reason = str((await fetch(session, front, "/ready"))["reason"])
            return reason if "pairing key" in reason else ""

        reason = await until(told, 60, "the router looked at both")
    finally:
        await asyncio.to_thread(front.end)
    assert all(key in reason for key in keys)
    assert all(part.url in reason for part in pair)

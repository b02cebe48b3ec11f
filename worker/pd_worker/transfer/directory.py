"""Decode's look-ups in a prefill's BootstrapServer. Control thread only; nothing is cached."""

from __future__ import annotations

from typing import TypeVar

import aiohttp
import msgspec

from pd_worker.errors import PairingError, TransferError
from pd_worker.transfer.args import PROTOCOL_VERSION, PrefillServerInfo, RankAddress
from pd_worker.transfer.mailbox import Endpoint

T = TypeVar("T")
MAX_ANSWER_NBYTES = 64 << 10
FORBIDDEN = (401, 403)
SENTINEL = (-1, -1, -1, -1)


async def _get(
    http: aiohttp.ClientSession, server: Endpoint, ranks: tuple[int, int, int, int], kind: type[T]
) -> T:
    names = ("prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank")
    params = dict(zip(names, ranks, strict=True))
    try:
        url = f"http://{server}/route"
        async with http.get(url, params=params, allow_redirects=False) as answer:
            body = await answer.content.read(MAX_ANSWER_NBYTES)
    except TimeoutError as error:
        raise TransferError(f"bootstrap server {server} does not answer") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise TransferError(f"bootstrap server {server}: {error}") from error
    if answer.status in FORBIDDEN:
        raise PairingError(f"bootstrap server {server} refused our token; secrets differ")
    if answer.status == 404 and ranks != SENTINEL:
        raise PairingError(f"bootstrap server {server} knows no prefill rank dp={ranks[0]}")
    if answer.status != 200:
        raise TransferError(f"bootstrap server {server}: HTTP {answer.status} {body[:200]!r}")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise TransferError(f"bootstrap server {server}: {error}") from error


async def server_info(http: aiohttp.ClientSession, server: Endpoint) -> PrefillServerInfo:
    """The prefill instance. Raises TransferError (try again) or PairingError (do not)."""
    info = await _get(http, server, SENTINEL, PrefillServerInfo)
    if "Authorization" in http.headers and not info.has_secret:
        raise PairingError(f"bootstrap server {server} has no secret; secrets differ")
    if info.protocol_version != PROTOCOL_VERSION:
        raise PairingError(
            f"protocol version differs: prefill has {info.protocol_version}, "
            f"decode has {PROTOCOL_VERSION}"
        )
    return info


async def rank_address(http: aiohttp.ClientSession, server: Endpoint, dp_rank: int) -> RankAddress:
    """The control socket of one rank. Raises like `server_info`."""
    return await _get(http, server, (dp_rank, 0, 0, 0), RankAddress)

"""A small client of the OpenAI API, for the chat, the demo and the load generator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from pd_worker.errors import PdserveError

MAX_EVENT_BYTES = 1 << 22
"""Longest line of a stream that is read."""


class ServerError(PdserveError):
    """The server cannot be reached, refused a request, or broke off its answer."""


def open_session() -> aiohttp.ClientSession:
    """A session without limits of its own on time or connections; the server has them."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        read_bufsize=MAX_EVENT_BYTES,
    )


async def get(session: aiohttp.ClientSession, url: str) -> Any:
    """The JSON answer to a GET; raises ServerError."""
    try:
        async with session.get(url) as response:
            await _check(response)
            return await response.json()
    except aiohttp.ClientError as error:
        raise ServerError(f"{url}: {error}") from error


async def model_name(session: aiohttp.ClientSession, url: str) -> str:
    """The first model that the server at `url` serves; raises ServerError."""
    models = await get(session, f"{url}/v1/models")
    return str(models["data"][0]["id"])


async def stream(
    session: aiohttp.ClientSession, url: str, body: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """POST `body` and yield every event of the streamed answer as it arrives; raises ServerError.

    Closing the iterator early closes the connection, by which the server ends the request.
    """
    finished = False
    try:
        async with session.post(url, json=body) as response:
            await _check(response)
            async for line in response.content:
                if line.startswith(b"data: [DONE]"):
                    finished = True
                elif line.startswith(b"data:"):
                    yield _event(line[5:])
    except aiohttp.ClientError as error:
        raise ServerError(f"{url}: {error}") from error
    if not finished:
        raise ServerError(f"{url}: the answer broke off")


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        text = await response.text()
        raise ServerError(f"HTTP {response.status}: {_message(text)}")


def _message(text: str) -> str:
    """The message of an OpenAI error object; the text itself where it is none."""
    try:
        return str(msgspec.json.decode(text)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return text[:500]


def _event(data: bytes) -> dict[str, Any]:
    event = msgspec.json.decode(data, type=dict[str, Any])
    if "error" in event:
        raise ServerError(_message(data.decode()))
    return event

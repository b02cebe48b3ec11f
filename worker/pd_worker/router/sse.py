"""Server-sent events as workers write them: `data: JSON` or `: comment`, then an empty line."""

from __future__ import annotations

from typing import Any

import msgspec

DATA = b"data:"
END = b"\n\n"
DONE = b"data: [DONE]\n\n"
WAITING = b": waiting\n\n"
"""A comment of the router's own."""


class Framer:
    """Cuts a stream of bytes into events, each with its empty line."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events that `chunk` completes."""
        *events, self._rest = (self._rest + chunk).split(END)
        return [event + END for event in events]

    @property
    def rest(self) -> bytes:
        """An event that never ended."""
        return self._rest


def is_comment(event: bytes) -> bool:
    """Keeps the connection open and says nothing."""
    return not event.startswith(DATA)


def payload(event: bytes) -> Any:
    """The event's JSON value; None for [DONE], comments and anything that is no JSON."""
    try:
        return msgspec.json.decode(event.removeprefix(DATA))
    except (msgspec.MsgspecError, RecursionError):
        return None


def encode(value: Any) -> bytes:
    """A value as an event."""
    return DATA + b" " + msgspec.json.encode(value) + END


def is_error(event: bytes) -> bool:
    """An error object in place of a chunk. Looks at the beginning only, at every event's cost."""
    return event.startswith(DATA) and event.removeprefix(DATA).lstrip().startswith(b'{"error"')


def is_prelude(event: bytes) -> bool:
    """A chat chunk that names the role and brings no token yet: workers may send it before prefill
    is done, so it does not count as the first byte of the answer."""
    chunk = payload(event)
    choices = chunk.get("choices") if isinstance(chunk, dict) else None
    return bool(choices) and isinstance(choices, list) and all(map(_says_nothing, choices))


def _says_nothing(choice: Any) -> bool:
    if not isinstance(choice, dict) or not isinstance(choice.get("delta"), dict):
        return False
    told = {name for name, value in choice["delta"].items() if value not in (None, "", [])}
    return told <= {"role"} and not choice.get("finish_reason")

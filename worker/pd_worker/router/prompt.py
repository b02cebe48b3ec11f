"""What the router reads from a request's prompt: its beginning, its size, how many there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

CHARS_PER_TOKEN = 4
"""Of English text, roughly; used for load only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The prompt as far as routing needs it."""

    units: str | Sequence[int]
    """Text or token ids of the first prompt, for equal beginnings."""
    batch: int | None
    """Number of prompts where the request has a list of them, None where it has one prompt."""
    tokens: int
    """Estimate over all prompts."""


def read_prompt(body: dict[str, Any]) -> Prompt:
    """The prompt in a request's body, whichever field holds it; odd shapes read as empty, because
    the worker is the one to refuse them."""
    if isinstance(body.get("messages"), list):
        return _single("\n".join(_message_texts(body["messages"])))
    given = next((body[k] for k in ("prompt", "input_ids", "text") if body.get(k) is not None), "")
    if isinstance(given, str) or _is_ids(given):
        return _single(given)
    if not isinstance(given, list):
        return _single("")
    prompts = [one for one in given if isinstance(one, str) or _is_ids(one)]
    first = prompts[0] if prompts else ""
    return Prompt(units=first, batch=len(given), tokens=sum(_size(one) for one in prompts))


def _single(units: str | Sequence[int]) -> Prompt:
    return Prompt(units=units, batch=None, tokens=_size(units))


def _is_ids(value: Any) -> bool:
    """A prompt as token ids. Looking at the first is enough: workers check them all."""
    return isinstance(value, list) and bool(value) and type(value[0]) is int


def _size(units: str | Sequence[int]) -> int:
    return len(units) // CHARS_PER_TOKEN if isinstance(units, str) else len(units)


def _message_texts(messages: list[Any]) -> Iterator[str]:
    for message in messages:
        if isinstance(message, dict):
            yield str(message.get("role", ""))
            yield from _content_texts(message.get("content"))


def _content_texts(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    for part in content if isinstance(content, list) else []:
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            yield part["text"]

"""Token ids to text as they come, and the search for stop strings in it.

One pair of objects a sample. Every token costs a decode of a short window, never of the whole
output. Streaming and non-streaming answers are both made of these pieces, so they are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

MAX_HELD = 3
"""A character has at most four bytes, so at most three can be waiting for the last."""

WINDOW = 16
"""Tokens after which the window is cut at a character border, if there is one."""

MAX_WINDOW = 64
"""Tokens after which garbage without any character border is given out as it is."""


class TextStream:
    """Text of a growing list of tokens.

        window: | context, given out already | new tokens |
        text:   | emitted                    | new | held: a character whose bytes are not all there

    The context is there because decoders look at neighbours (leading spaces, byte fallback).
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._border = 0
        """Tokens of the window up to the last character border but one cut."""
        self._emitted = 0

    def push(self, token: int) -> str:
        """The text that this token completes; may be empty."""
        self._window.append(token)
        text = self._decode(self._window)
        held = _incomplete(text) if len(self._window) < MAX_WINDOW else 0
        new = self._emit(text, len(text) - held)
        if not held:
            self._cut()
        return new

    def flush(self) -> str:
        """The text still held: an incomplete character as U+FFFD."""
        text = self._decode(self._window)
        return self._emit(text, len(text))

    def _emit(self, text: str, end: int) -> str:
        new = text[self._emitted : end]
        self._emitted = max(self._emitted, end)
        return new

    def _cut(self) -> None:
        if len(self._window) < WINDOW:
            self._border = len(self._window)
            return
        self._window = self._window[self._border :]
        self._border = len(self._window)
        self._emitted = len(self._decode(self._window))


def _incomplete(text: str) -> int:
    """Characters at the end that may become another one with more bytes."""
    return min(MAX_HELD, len(text) - len(text.rstrip(REPLACEMENT)))


class StopFinder:
    """Looks for stop strings in text that comes in pieces, and holds back what may begin one.

    Of several, the one that is complete first counts; of those that end together the longest. So
    the result does not depend on how the text was cut into pieces.
    """

    def __init__(self, stops: Sequence[str], *, include: bool) -> None:
        """`include`: the stop string is part of the text that is given out."""
        self._stops, self._include = tuple(stops), include
        self._held = ""

    def push(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """Text that is certain now, and the stop string that ends it if it is complete.

        Not `armed` (before min_new_tokens) a complete stop string is ordinary text.
        """
        if not self._stops:
            return text, None
        held, self._held = self._held + text, ""
        if armed and (found := self._find(held)):
            start, stop = found
            return held[: start + (len(stop) if self._include else 0)], stop
        certain = len(held) - self._beginning(held)
        self._held = held[certain:]
        return held[:certain], None

    def flush(self) -> str:
        """The text held back, when no more will come."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, str] | None:
        hits = [(start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(hits, key=lambda hit: (hit[0] + len(hit[1]), hit[0]), default=None)

    def _beginning(self, text: str) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops if len(stop) > length):
                return length
        return 0

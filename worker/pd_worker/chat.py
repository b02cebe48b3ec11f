"""`pdserve chat`: a conversation with a running server in the terminal.

Reading a line is plain blocking input; each answer runs in an event loop of its own, so that
Ctrl-C ends the answer (the server stops computing it) and not the program.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from pd_worker.client import ServerError, model_name, open_session, stream

with contextlib.suppress(ImportError):
    import readline  # noqa: F401  (gives input() history and editing)

HELP = (
    "Type a message. /clear forgets the conversation, /quit or Ctrl-D ends, Ctrl-C stops an answer."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """A conversation with a running server."""

    url: str = "http://127.0.0.1:8000"
    """The server: a router or a unified worker."""
    model: str = ""
    """Name of the model; empty takes the first that the server lists."""
    system: str = ""
    """System message that opens the conversation."""
    max_tokens: int = 512
    """Longest answer in tokens."""
    temperature: float = 0.7
    """0 always takes the most probable token."""


class Chat:
    """The conversation so far, as messages of the OpenAI API."""

    def __init__(self, options: ChatOptions) -> None:
        self._options = options
        self.messages: list[dict[str, str]] = []
        self.clear()

    def clear(self) -> None:
        system = self._options.system
        self.messages = [{"role": "system", "content": system}] if system else []

    def ask(self, text: str) -> None:
        """Print the answer as it comes. What was printed before Ctrl-C stays in the history; a
        question that got no answer does not."""
        self.messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            asyncio.run(self._answer(pieces))
        except KeyboardInterrupt:
            print(" [stopped]", end="")
        except ServerError as error:
            print(f"error: {error}", end="")
        print()
        if pieces:
            self.messages.append({"role": "assistant", "content": "".join(pieces)})
        else:
            self.messages.pop()

    async def _answer(self, pieces: list[str]) -> None:
        url = self._options.url.rstrip("/")
        async with open_session() as session:
            model = self._options.model or await model_name(session, url)
            async for event in stream(session, f"{url}/v1/chat/completions", self._body(model)):
                for choice in event["choices"]:
                    piece = choice["delta"].get("content") or ""
                    pieces += [piece] if piece else []
                    print(piece, end="", flush=True)

    def _body(self, model: str) -> dict[str, Any]:
        return {
            "model": model,
            "messages": self.messages,
            "max_tokens": self._options.max_tokens,
            "temperature": self._options.temperature,
            "stream": True,
        }


def run(options: ChatOptions) -> int:
    """Read, answer, repeat until /quit or the end of the input."""
    chat = Chat(options)
    print(HELP)
    while True:
        try:
            text = input("\n> ").strip()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            print("\n/quit ends", end="")
            continue
        if text == "/quit":
            return 0
        if text == "/clear":
            chat.clear()
        elif text:
            chat.ask(text)

"""Text to token ids and back: the model's own tokenizer and chat template.

Loaded once at start, before the server listens. Encoding and decoding go to the Rust tokenizer
directly, which is safe to use from several threads; only the chat template is the wrapper's.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pd_worker.errors import InvalidRequest, ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE_ARGS = {"add_generation_prompt", "continue_final_message", "documents"}
"""Arguments of the renderer that a client may set; all others are the template's own variables."""

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class Tokenizer:
    """The tokenizer of one model folder."""

    def __init__(self, wrapper: PreTrainedTokenizerBase, defaults: dict[str, Any]) -> None:
        """`defaults` are the model's generation_config.json."""
        self._wrapper = wrapper
        self._backend = wrapper.backend_tokenizer
        self.defaults = defaults

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest token id that has a text."""
        return 1 + int(max(self._backend.get_vocab(with_added_tokens=True).values()))

    @property
    def has_chat_template(self) -> bool:
        """False for base models, which cannot serve /v1/chat/completions."""
        return self._wrapper.chat_template is not None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text; with the tokens its model wants around a prompt, unless told not."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD, unknown ids are empty."""
        text: str = self._backend.decode(ids, skip_special_tokens=skip_special_tokens)
        return text

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]] | None,
        template_args: dict[str, Any],
    ) -> str:
        """The prompt text of a conversation; raises InvalidRequest where the template refuses."""
        if not self.has_chat_template:
            raise InvalidRequest(
                "this model has no chat template; use /v1/completions", param="messages"
            )
        self._check_args(template_args)
        args = {"add_generation_prompt": True, **template_args, "tokenize": False}
        try:
            text = self._wrapper.apply_chat_template(
                messages, tools=None if tools is None else list(tools), **args
            )
        except Exception as error:  # a template is code that runs on the client's input
            raise InvalidRequest(
                f"the model's chat template refuses these messages: {error}", param="messages"
            ) from error
        return str(text)

    def _check_args(self, template_args: dict[str, Any]) -> None:
        """Refuse what is the renderer's own: a client's template could run for ever."""
        own = inspect.signature(self._wrapper.apply_chat_template).parameters.keys()
        refused = sorted(template_args.keys() & own - TEMPLATE_ARGS)
        if refused:
            problem = f"chat_template_kwargs cannot set {', '.join(refused)}"
            raise InvalidRequest(problem, param="chat_template_kwargs")

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one token stands for; the name of a special token; empty if unknown."""
        piece: str | None = self._backend.id_to_token(token)
        if piece is None:
            return b""
        if token in self._added:
            return piece.encode()
        if self._is_byte_level:
            return bytes(BYTE_OF_CHAR[char] for char in piece if char in BYTE_OF_CHAR)
        if match := BYTE_TOKEN.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return piece.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()

    def token_text(self, token: int) -> str:
        """One token for people: its text, or `bytes:\\xe2\\x82` where it is part of a character."""
        data = self.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self._backend.get_added_tokens_decoder())

    @cached_property
    def _is_byte_level(self) -> bool:
        return "ByteLevel" in json.dumps(json.loads(self._backend.to_str())["decoder"])


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a model folder; raises ModelError. Takes seconds; imports no torch where
    the folder has a tokenizer.json."""
    if not any(folder.glob("tokenizer*")):
        raise ModelError(f"there is no tokenizer in {folder}")
    # Imported here because it costs seconds, which only a starting worker should pay.
    import transformers

    kind = (
        transformers.PreTrainedTokenizerFast
        if (folder / "tokenizer.json").is_file()
        else transformers.AutoTokenizer
    )
    try:
        wrapper = kind.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a foreign library: whatever it raises means "cannot be read"
        raise ModelError(f"cannot read the tokenizer in {folder}: {error}") from error
    if getattr(wrapper, "backend_tokenizer", None) is None:
        raise ModelError(f"the tokenizer in {folder} has no fast form (tokenizer.json)")
    return Tokenizer(wrapper, read_json(folder / "generation_config.json"))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is no file."""
    if not path.is_file():
        return {}
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def _byte_alphabet() -> dict[str, int]:
    """The byte behind each character of byte-level BPE: printable Latin-1 stands for itself, the
    other bytes follow from U+0100 on in order (GPT-2)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    return alphabet | {chr(0x100 + index): byte for index, byte in enumerate(others)}


BYTE_OF_CHAR = _byte_alphabet()

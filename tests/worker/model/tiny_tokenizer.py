"""A tokenizer of one token a byte, in transformers' folder format."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

EOS = 256


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Ids 0 … 255 are the byte alphabet in its sorted order, 256 ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: number for number, symbol in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab={**vocab, "<|end|>": EOS}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def save(folder: Path) -> Path:
    """Write it into `folder`."""
    byte_tokenizer().save_pretrained(folder)
    return folder

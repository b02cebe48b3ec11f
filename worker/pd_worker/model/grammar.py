"""Structured output: grammars compiled to masks of allowed tokens, by llguidance."""

from __future__ import annotations

from functools import cached_property, lru_cache
from pathlib import Path

import llguidance.hf
import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pd_worker.core.sampling_params import Grammar
from pd_worker.errors import InvalidRequest
from pd_worker.model.base import ModelGeometry

_ANY_OBJECT = '{"type": "object"}'
_KEPT = 64


class GrammarCompiler:
    """Compiles grammars for one model's tokens. One thread at a time, not the scheduler's: the
    first call reads the tokenizer (seconds), the others take up to a second."""

    def __init__(self, folder: Path, geometry: ModelGeometry) -> None:
        self._folder, self._geometry = folder, geometry
        self._compiled = lru_cache(_KEPT)(self._compile)

    def compile(self, grammar: Grammar) -> GrammarMatcher:
        """A matcher at the start of `grammar`; raises InvalidRequest if it cannot be used."""
        return GrammarMatcher(self._compiled(grammar).deep_copy())

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        tokenizer = AutoTokenizer.from_pretrained(self._folder)
        assert isinstance(tokenizer, PreTrainedTokenizerFast)
        return llguidance.hf.from_tokenizer(
            tokenizer, n_vocab=self._geometry.vocab_size, eos_token=list(self._geometry.eos_ids)
        )

    def _compile(self, grammar: Grammar) -> LLMatcher:
        try:
            matcher = LLMatcher(self._tokenizer, _source(grammar), log_level=0)
        except ValueError as error:
            raise _unusable(str(error)) from error
        if matcher.is_error():
            raise _unusable(matcher.get_error())
        return matcher


class GrammarMatcher:
    """Where one request's output is in its grammar; a Matcher of core/req.py."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def accept(self, token: int) -> bool:
        """Go on by a drawn token; False where the grammar does not allow it, and then for good."""
        return self._matcher.consume_token(token)

    def fill_mask(self, row: npt.NDArray[np.int32]) -> None:
        """Write the bits of the tokens that may come next into `row` ([ceil(vocab / 32)])."""
        assert row.flags.c_contiguous
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)

    @property
    def terminated(self) -> bool:
        """True once nothing but an end token can follow."""
        return self._matcher.is_stopped()


def _source(grammar: Grammar) -> str:
    """The grammar in llguidance's terms; raises ValueError for JSON that is none."""
    match grammar.kind:
        case "json_schema":
            return LLMatcher.grammar_from_json_schema(grammar.source)
        case "json_object":
            return LLMatcher.grammar_from_json_schema(_ANY_OBJECT)
        case "regex":
            return LLMatcher.grammar_from_regex(grammar.source)
        case "lark":
            return LLMatcher.grammar_from_lark(grammar.source)


def _unusable(reason: str) -> InvalidRequest:
    return InvalidRequest(f"the grammar cannot be used: {reason}", param="response_format")

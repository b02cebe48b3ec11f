"""Request fields of both dialects → validated SamplingParams.

Pure. What a client leaves out takes the model's own generation defaults, then the class's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from pd_worker.api.schema import ChatRequest, CompletionRequest, NativeSampling, ResponseFormat
from pd_worker.core.sampling_params import MAX_SEED, Grammar, SamplingParams
from pd_worker.errors import InvalidRequest

MAX_STOPS = 64
MAX_STOP_LENGTH = 1024
MAX_GRAMMAR_LENGTH = 1 << 16
"""Characters of a grammar's source: compiling takes more than linear time, here up to a second."""

GREEDY_BELOW = 1e-5
"""Temperatures under it are greedy: dividing by them overflows float32."""

GRAMMAR_FIELDS = ("response_format", "json_schema", "regex", "ebnf", "grammar")
"""Fields of either dialect that constrain the text."""

DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields that a model's generation_config.json may set a default for."""


def openai_sampling(
    body: CompletionRequest | ChatRequest,
    *,
    max_new_tokens: int,
    defaults: dict[str, Any],
    vocab_size: int,
) -> SamplingParams:
    """Of /v1/completions and /v1/chat/completions; raises InvalidRequest naming the field."""
    grammar = _one_grammar(
        ("response_format", _format_grammar(body.response_format)),
        ("regex", _regex(body.regex)),
        ("ebnf", _lark("ebnf", body.ebnf)),
        ("grammar", _lark("grammar", body.grammar)),
    )
    return _build(
        body,
        defaults,
        vocab_size,
        max_new_tokens=max_new_tokens,
        min_new_tokens=body.min_tokens or 0,
        seed=body.seed,
        grammar=grammar,
        include_stop=bool(body.include_stop_str_in_output),
    )


def native_sampling(
    params: NativeSampling, *, max_new_tokens: int, defaults: dict[str, Any], vocab_size: int
) -> SamplingParams:
    """Of /generate; raises InvalidRequest naming the field."""
    grammar = _one_grammar(
        ("json_schema", _schema(params.json_schema)),
        ("regex", _regex(params.regex)),
        ("ebnf", _lark("ebnf", params.ebnf)),
    )
    return _build(
        params,
        defaults,
        vocab_size,
        max_new_tokens=max_new_tokens,
        min_new_tokens=params.min_new_tokens or 0,
        seed=params.seed if params.sampling_seed is None else params.sampling_seed,
        grammar=grammar,
        include_stop=bool(params.no_stop_trim),
    )


def sample_seed(seed: int | None, index: int) -> int | None:
    """Seed of sample `index` of a prompt: seed + index, wrapped into the allowed range."""
    if seed is None:
        return None
    return seed + index if seed + index <= MAX_SEED else seed + index - 2 * MAX_SEED


def _build(
    body: CompletionRequest | ChatRequest | NativeSampling,
    defaults: dict[str, Any],
    vocab_size: int,
    **rest: Any,
) -> SamplingParams:
    asked = {name: getattr(body, name) for name in DEFAULTED}
    given = {name: defaults.get(name) if asked[name] is None else asked[name] for name in asked}
    given |= {
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logit_bias": body.logit_bias,
        "stop_token_ids": None if body.stop_token_ids is None else tuple(body.stop_token_ids),
        "ignore_eos": body.ignore_eos,
        "skip_special_tokens": body.skip_special_tokens,
    }
    known = {name: value for name, value in given.items() if value is not None}
    known["top_k"] = _top_k(known.get("top_k", -1), vocab_size)
    if 0 <= known.get("temperature", 1.0) < GREEDY_BELOW:
        known["temperature"] = 0.0
    sampling = SamplingParams(stop=_stops(body.stop), **known, **rest)
    sampling.validate(vocab_size)
    return sampling


def _top_k(value: int, vocab_size: int) -> int:
    """0 and more than the vocabulary mean "no limit" to many clients."""
    return -1 if value == 0 or value >= vocab_size else value


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop holds more than {MAX_STOPS} strings", param="stop")
    if any(not text or len(text) > MAX_STOP_LENGTH for text in stops):
        raise InvalidRequest(
            f"stop strings must have 1 to {MAX_STOP_LENGTH} characters", param="stop"
        )
    return stops


def _one_grammar(*named: tuple[str, Grammar | None]) -> Grammar | None:
    """The one grammar given, checked; raises InvalidRequest where two are."""
    given = [(name, grammar) for name, grammar in named if grammar is not None]
    if len(given) > 1:
        names = " and ".join(name for name, _ in given)
        raise InvalidRequest(f"{names} exclude each other", param=given[1][0])
    for name, grammar in given:
        _check_grammar(name, grammar)
        return grammar
    return None


def _format_grammar(wanted: ResponseFormat | None) -> Grammar | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Grammar("json_object")
    if wanted.type != "json_schema":
        raise InvalidRequest(
            "response_format.type must be text, json_object or json_schema", param="response_format"
        )
    if wanted.json_schema is None:
        raise InvalidRequest("response_format.json_schema is missing", param="response_format")
    return Grammar("json_schema", json.dumps(wanted.json_schema.schema))


def _schema(schema: str | dict[str, Any] | None) -> Grammar | None:
    if schema is None:
        return None
    return Grammar("json_schema", schema if isinstance(schema, str) else json.dumps(schema))


def _regex(pattern: str | None) -> Grammar | None:
    return None if pattern is None else Grammar("regex", pattern)


def _lark(name: str, source: str | None) -> Grammar | None:
    """A grammar in Lark's syntax or in GBNF (`root ::= …`), which is translated."""
    if source is None:
        return None
    _check_length(name, source)
    try:
        return Grammar("lark", any_to_lark(source))
    except Exception as error:  # the translator raises plain Exceptions on bad input
        raise InvalidRequest(f"{name} cannot be read: {error}", param=name) from error


COMPILERS: dict[str, Callable[[str], str]] = {
    "json_object": lambda _: LLMatcher.grammar_from_json_schema({"type": "object"}),
    "json_schema": LLMatcher.grammar_from_json_schema,
    "regex": LLMatcher.grammar_from_regex,
    "lark": LLMatcher.grammar_from_lark,
}


def _check_length(name: str, source: str) -> None:
    if len(source) > MAX_GRAMMAR_LENGTH:
        raise InvalidRequest(f"{name} is longer than {MAX_GRAMMAR_LENGTH} characters", param=name)


def _check_grammar(name: str, grammar: Grammar) -> None:
    _check_length(name, grammar.source)
    try:
        problem = LLMatcher.validate_grammar(COMPILERS[grammar.kind](grammar.source))
    except ValueError as error:
        problem = str(error)
    if problem:
        raise InvalidRequest(f"{name} cannot be used: {problem}", param=name)

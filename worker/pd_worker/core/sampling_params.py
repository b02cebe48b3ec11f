"""How one request wants its tokens chosen and when it wants to stop.

Built and validated in the API process, carried unchanged to the scheduler (msgpack), read by the
sampler. Field names are SGLang's, except `max_new_tokens`'s alias in the OpenAI API.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pd_worker.errors import InvalidRequest

MAX_SEED = 2**63 - 1
MAX_TOP_LOGPROBS = 128
"""Most probable tokens that a request may ask for per position."""


class Grammar(msgspec.Struct, frozen=True):
    """A constraint on the output text: `kind` says how `source` is to be read."""

    kind: Literal["json_schema", "regex", "lark", "json_object"]
    source: str = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling and stopping of one sample of one request.

    `seed` None means "draw one"; a given seed makes the tokens depend on nothing but the request
    (token i is drawn with a counter-based uniform of (seed, i)), so unified and PD agree.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_k: int = -1
    """-1 keeps the whole vocabulary; 1 is greedy."""
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    stop: tuple[str, ...] = ()
    """Stop strings; looked for by the detokenizer, which alone knows the text."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    grammar: Grammar | None = None
    skip_special_tokens: bool = True
    include_stop: bool = False
    """Keep the matched stop string in the text."""

    @property
    def greedy(self) -> bool:
        """True where the arg-max is taken and no random number is used."""
        return self.temperature == 0.0 or self.top_k == 1

    @property
    def penalised(self) -> bool:
        """True where the logits depend on the tokens so far."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    def validate(self, vocab_size: int) -> None:
        """Raise InvalidRequest that names the first field out of range."""
        for name, value, low, high in (
            ("max_new_tokens", self.max_new_tokens, 0, 2**31),
            ("min_new_tokens", self.min_new_tokens, 0, self.max_new_tokens),
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 1e-6, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 1e-3, 100.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
            ("seed", self.seed or 0, -MAX_SEED, MAX_SEED),
        ):
            if not low <= value <= high:  # false for NaN as well
                raise InvalidRequest(
                    f"{name} must be between {low} and {high}, got {value}", param=name
                )
        if self.top_k != -1 and self.top_k < 1:
            raise InvalidRequest(f"top_k must be -1 or at least 1, got {self.top_k}", param="top_k")
        self._validate_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        self._validate_ids("logit_bias", tuple(self.logit_bias), vocab_size)
        for token, bias in self.logit_bias.items():
            if not -100.0 <= bias <= 100.0:
                raise InvalidRequest(
                    f"logit_bias[{token}] must be between -100 and 100, got {bias}",
                    param="logit_bias",
                )

    @staticmethod
    def _validate_ids(name: str, ids: tuple[int, ...], vocab_size: int) -> None:
        for token in ids:
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    f"{name} holds {token}, outside the vocabulary of {vocab_size}", param=name
                )

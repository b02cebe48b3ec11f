"""What a model's attention really is, found out by calling it; and refusal of what we cannot serve.

Config fields differ from model to model, so each layer is asked for its heads and window by a
forward of two tokens under an attention implementation that records its calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel

from pd_worker.errors import ModelError
from pd_worker.model.attention import PAGED

PROBE = "pdserve_probe"
_SERVED_LAYERS = {"full_attention", "sliding_attention"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCall:
    """One call of the attention interface."""

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None
    causal: bool
    extras: tuple[str, ...]
    """Names of tensors that the model passes besides queries, keys and values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """All calls of one forward, and the width of the logits."""

    calls: tuple[LayerCall, ...]
    vocab_size: int

    @property
    def first(self) -> LayerCall:
        """Of layer 0; the others have the same heads."""
        return self.calls[0]


def refuse_config(config: PretrainedConfig) -> None:
    """Raise ModelError for a model whose config says that its attention cannot be served."""
    text = config.get_text_config()
    kinds = set(getattr(text, "layer_types", None) or ()) - _SERVED_LAYERS
    reasons = {
        "it has an encoder and a decoder": config.is_encoder_decoder,
        "its attention looks both ways": getattr(text, "use_bidirectional_attention", False)
        or not getattr(text, "is_causal", True),
        "its attention is latent (MLA)": getattr(text, "kv_lora_rank", None),
        f"it has layers of the kind {', '.join(sorted(kinds))}": kinds,
    }
    _refuse(config, [reason for reason, applies in reasons.items() if applies])


def probe_model(model: PreTrainedModel) -> Probe:
    """Call every layer once; raises ModelError for a model that cannot be served."""
    calls: list[LayerCall] = []
    ids = torch.zeros(1, 2, dtype=torch.int64, device=model.device)
    with _implementation(model, PROBE), torch.inference_mode():
        try:
            output = model(
                input_ids=ids,
                position_ids=torch.arange(2)[None].to(ids),
                use_cache=False,
                paged=calls,
            )
        except (TypeError, KeyError) as error:
            reason = f"its code does not pass attention arguments on ({error})"
            raise ModelError(_refusal(model.config, reason)) from error
    _check_calls(model.config, calls)
    return Probe(calls=tuple(calls), vocab_size=output.logits.shape[-1])


def _probe_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: list[LayerCall],
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    extras = {name for name, given in kwargs.items() if isinstance(given, torch.Tensor)}
    paged.append(
        LayerCall(
            layer=int(getattr(module, "layer_idx", -1)),
            heads=query.shape[1],
            kv_heads=key.shape[1],
            head_dim=key.shape[-1],
            value_dim=value.shape[-1],
            window=sliding_window,
            causal=bool(getattr(module, "is_causal", True))
            and kwargs.get("is_causal") is not False,
            extras=tuple(sorted(extras - {"position_ids"})),
        )
    )
    return torch.zeros_like(query).transpose(1, 2)[..., : value.shape[-1]], None


AttentionInterface.register(PROBE, _probe_attention)


@contextmanager
def _implementation(model: PreTrainedModel, name: str) -> Iterator[None]:
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(PAGED)


def _check_calls(config: PretrainedConfig, calls: list[LayerCall]) -> None:
    text = config.get_text_config()
    shapes = {(call.heads, call.kv_heads, call.head_dim) for call in calls}
    extras = sorted({name for call in calls for name in call.extras})
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * len(calls)
    reasons = {
        f"{len(calls)} of its {text.num_hidden_layers} layers use the attention interface": (
            [call.layer for call in calls] != list(range(text.num_hidden_layers))
        ),
        "its layers differ in heads": len(shapes) > 1,
        "its keys and values differ in width": any(c.head_dim != c.value_dim for c in calls),
        "its attention looks both ways": not all(call.causal for call in calls),
        f"its attention needs {', '.join(extras)}": extras,
        "a sliding layer does not say its window": any(
            kind == "sliding_attention" and call.window is None
            for kind, call in zip(kinds, calls, strict=False)
        ),
    }
    _refuse(config, [reason for reason, applies in reasons.items() if applies])


def _refuse(config: PretrainedConfig, reasons: list[str]) -> None:
    if reasons:
        raise ModelError(_refusal(config, "; ".join(reasons)))


def _refusal(config: PretrainedConfig, reason: str) -> str:
    return f"models of the type {config.model_type} cannot be served: {reason}"

"""Paged attention: the seam between transformers' model code and our KV pool.

A model is loaded with the attention implementation PAGED, which ends up in `paged_attention` once
per layer. What the step is about travels as the keyword argument `paged` through the model's
forward, so nothing here is global but the registered name. transformers builds no mask for an
implementation that it has no mask function for.

    backend.plan(batch) ─► StepAttention ── model(…, paged=step) ─► step.attend(layer, q, k, v, …)
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers import AttentionInterface

from pd_worker.core.batch import ForwardBatch
from pd_worker.errors import ConfigError
from pd_worker.memory.kv_pool import KVPool
from pd_worker.model.attention_flashinfer import FlashInferAttention, flashinfer_problem
from pd_worker.model.attention_torch import TorchAttention

PAGED = "pdserve_paged"


class StepAttention(Protocol):
    """Attention of one step, for all layers."""

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> torch.Tensor:
        """Write the new tokens' keys and values into the pool, then attend causally over each
        request's pages.

        query [T, heads, head_dim]; key, value [T, kv_heads, head_dim]; the result is like query.
        `window`: how many tokens back a token sees, itself included; None is all.
        """


class AttentionBackend(Protocol):
    """Makes the plan of a step from its batch. Bound to one KV pool."""

    def plan(self, batch: ForwardBatch) -> StepAttention:
        """Move indices to the device and work out what all layers share."""


def make_attention(name: str, pool: KVPool) -> AttentionBackend:
    """The backend that --attention-backend names; raises ConfigError if it cannot run here."""
    problem = "" if name == "torch" else flashinfer_problem(pool)
    if name == "flashinfer" and problem:
        raise ConfigError(
            "--attention-backend", f"flashinfer cannot be used: {problem}", "use auto"
        )
    return TorchAttention(pool) if name == "torch" or problem else FlashInferAttention(pool)


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    paged: StepAttention,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: [1, heads, T, head_dim] in, [1, T, heads, head_dim] out.

    `_` takes what model code passes along to every implementation; the probe has refused models
    that pass something which changes the result.
    """
    layer = module.layer_idx
    assert isinstance(layer, int)
    output = paged.attend(
        layer,
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window,
        softcap=softcap,
    )
    return output[None], None


AttentionInterface.register(PAGED, paged_attention)

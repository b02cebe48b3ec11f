"""What a model runner is to the rest of the worker, without torch.

ModelRunner (runner.py) computes real models, FakeRunner (runner_fake.py) a hash of the KV.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pd_worker.core.batch import BatchResult, ForwardBatch, Ints
from pd_worker.memory.layout import KVLayout


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelGeometry:
    """The facts about a loaded model that scheduling, memory and pairing depend on."""

    model_type: str
    """As in the model's config: llama, qwen3, gemma3_text, …"""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    """Width of the logits."""
    context_length: int
    """Longest prompt + output in tokens."""
    eos_ids: tuple[int, ...]
    """Tokens that end an answer, from the generation config."""
    dtype: str
    """Of weights and KV: float32, bfloat16 or float16."""
    sliding_windows: tuple[int | None, ...]
    """For each layer: how many tokens back it sees, itself included; None is all."""
    fingerprint: str
    """Equal where config and weights are equal; part of the pairing key."""

    def kv_layout(self, num_pages: int, page_size: int) -> KVLayout:
        """The KV pool that this model needs."""
        return KVLayout(
            num_pages=num_pages,
            num_layers=self.num_layers,
            num_kv_heads=self.num_kv_heads,
            page_size=page_size,
            head_dim=self.head_dim,
            dtype=self.dtype,
        )


class Runner(Protocol):
    """Computes steps. One thread at a time; blocks until the step's result is on the host."""

    @property
    def geometry(self) -> ModelGeometry:
        """Of the model that is run."""

    def forward(self, batch: ForwardBatch) -> BatchResult:
        """Compute one EXTEND or DECODE step: write the new tokens' KV into the pool, draw a
        token for each sampled request and keep it as the input of its row's next DECODE."""

    def set_tokens(self, rows: Ints, tokens: Ints) -> None:
        """Set the input of the next DECODE step of `rows` (KV that came from a peer, resume)."""

"""Tiny random models of the families that have to run, and what transformers makes of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel

from pd_worker.memory.allocator import PageAllocator
from pd_worker.memory.kv_pool import KVPool
from pd_worker.model.attention import PAGED
from pd_worker.model.attention_torch import TorchAttention
from pd_worker.model.base import ModelGeometry
from pd_worker.model.loader import geometry_of
from pd_worker.model.runner import ModelRunner
from tests.worker.model.driver import Driver

VOCAB = 128
_COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
_WINDOWS = ["sliding_attention", "sliding_attention", "full_attention"]


def _config(name: str) -> PretrainedConfig:
    match name:
        case "llama":
            return transformers.LlamaConfig(**_COMMON, head_dim=16)
        case "qwen3":
            return transformers.Qwen3Config(**_COMMON, head_dim=24)
        case "gemma2":
            return transformers.Gemma2Config(
                **_COMMON, head_dim=16, sliding_window=24, layer_types=_WINDOWS
            )
        case "gemma3":
            return transformers.Gemma3TextConfig(
                **_COMMON, head_dim=16, sliding_window=24, layer_types=_WINDOWS
            )
        case "mistral":
            return transformers.MistralConfig(**_COMMON, head_dim=16, sliding_window=20)
        case "mixtral":
            return transformers.MixtralConfig(
                **_COMMON, head_dim=16, num_local_experts=4, num_experts_per_tok=2
            )
        case "qwen3_moe":
            return transformers.Qwen3MoeConfig(
                **_COMMON,
                head_dim=16,
                num_experts=4,
                num_experts_per_tok=2,
                moe_intermediate_size=32,
                decoder_sparse_step=1,
                norm_topk_prob=True,
            )
    raise KeyError(name)


FAMILIES = ["llama", "qwen3", "gemma2", "gemma3", "mistral", "mixtral", "qwen3_moe"]


@cache
def reference(name: str) -> PreTrainedModel:
    """A random model in float32 with transformers' own attention."""
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(
        _config(name), attn_implementation="eager"
    )
    model.generation_config.eos_token_id = None
    return model.eval().requires_grad_(False)


@cache
def paged(name: str, dtype: torch.dtype = torch.float32) -> tuple[PreTrainedModel, ModelGeometry]:
    """The same weights with our attention, and the geometry."""
    model = transformers.AutoModelForCausalLM.from_config(_config(name), attn_implementation=PAGED)
    model.load_state_dict(reference(name).state_dict())
    model = model.to(dtype).eval()
    return model, geometry_of(model, context_length=0, weights=name)


def make_driver(
    name: str,
    page_size: int,
    *,
    num_pages: int = 0,
    dtype: torch.dtype = torch.float32,
    poison: bool = True,
) -> Driver:
    """A driver over a fresh pool; freed and never used pages are NaN."""
    model, geometry = paged(name, dtype)
    return driver_of(model, geometry, page_size, num_pages or 2048 // page_size, poison=poison)


def driver_of(
    model: Any, geometry: ModelGeometry, page_size: int, num_pages: int, *, poison: bool = True
) -> Driver:
    """The same for a given model."""
    pool = KVPool(geometry.kv_layout(num_pages, page_size), device=model.device)
    allocator = PageAllocator(num_pages, page_size, on_free=pool.poison if poison else None)
    if poison:
        every = allocator.alloc(allocator.available)
        assert every is not None
        allocator.free(every)
    return Driver(ModelRunner(model, geometry, pool, TorchAttention(pool), num_rows=32), allocator)


def greedy(model: PreTrainedModel, prompt: list[int], count: int) -> list[int]:
    """Tokens of transformers' generate."""
    return _greedy(model, tuple(prompt), count)


@cache
def _greedy(model: PreTrainedModel, prompt: tuple[int, ...], count: int) -> list[int]:
    out = model.generate(
        torch.tensor([prompt], device=model.device),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64, device=model.device),
        max_new_tokens=count,
        do_sample=False,
    )
    return out[0, len(prompt) :].tolist()


def full_logprobs(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """[len(ids), vocab] log-probabilities after each token, in one pass without a cache."""
    with torch.inference_mode():
        logits = model(torch.tensor([ids], device=model.device), use_cache=False).logits[0]
    return logits.float().log_softmax(-1)

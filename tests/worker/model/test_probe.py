"""Models whose attention we cannot serve are refused by name, with the reason."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from transformers import AutoModelForCausalLM, PretrainedConfig

from pd_worker.errors import ModelError
from pd_worker.model.attention import PAGED
from pd_worker.model.probe import probe_model, refuse_config
from tests.worker.model.tiny import paged

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
}
KV = {"num_key_value_heads": 2}


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.T5Config(), "encoder"),
        (transformers.DeepseekV3Config(**SIZES), "MLA"),
        (transformers.MambaConfig(hidden_size=32, num_hidden_layers=2), "linear_attention"),
        (transformers.JambaConfig(**SIZES), "linear_attention"),
        (transformers.Llama4TextConfig(**SIZES, **KV), "chunked_attention"),
        (
            transformers.Gemma3TextConfig(**SIZES, **KV, use_bidirectional_attention=True),
            "both ways",
        ),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_some_are_known_by_their_config(config: PretrainedConfig, reason: str) -> None:
    with pytest.raises(ModelError, match=f"{config.model_type}.*{reason}"):
        refuse_config(config)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (transformers.GptOssConfig(**SIZES, **KV, head_dim=16, num_local_experts=4), "s_aux"),
        (transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4), "0 of its 2 layers"),
        (transformers.BertConfig(**SIZES), "both ways"),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_some_are_found_out_by_calling_them(config: PretrainedConfig, reason: str) -> None:
    refuse_config(config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=PAGED)
    with pytest.raises(ModelError, match=f"{config.model_type}.*{reason}"):
        probe_model(model)


def test_each_layer_tells_its_window() -> None:
    model, geometry = paged("gemma3")
    assert geometry.sliding_windows == (24, 24, None)
    assert model.config._attn_implementation == PAGED
    assert (geometry.num_layers, geometry.num_heads, geometry.num_kv_heads) == (3, 4, 2)
    assert (geometry.head_dim, geometry.vocab_size, geometry.context_length) == (16, 128, 512)

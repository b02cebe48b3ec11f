"""A tiny llama as a .gguf file, written like other tools write it."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch

from tests.worker.model.tiny import VOCAB, reference

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write_gguf(path: Path) -> Path:
    """reference("llama") in float32 with a tokenizer of VOCAB symbols."""
    model = reference("llama")
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(VOCAB)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    _add_tokenizer(writer)
    for name, tensor in model.state_dict().items():
        writer.add_tensor(*_tensor(name, tensor, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    symbols = [chr(33 + i) if i < 90 else f"<{i}>" for i in range(VOCAB - 1)] + ["!!"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(symbols)
    writer.add_token_types([gguf.TokenType.NORMAL] * VOCAB)
    writer.add_token_merges(["! !"])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)


def _tensor(name: str, tensor: torch.Tensor, config: object) -> tuple[str, np.ndarray]:
    """A tensor by its GGUF name; queries and keys in that format's order of rotary halves."""
    data = tensor.float().numpy()
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in top:
        return f"{top[stem]}.weight", data
    _, _, layer, part = stem.split(".", 3)
    if part in ("self_attn.q_proj", "self_attn.k_proj"):
        halves = data.reshape(-1, 2, config.head_dim // 2, data.shape[-1])
        data = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(data.shape))
    return f"blk.{layer}.{_NAMES[part]}.weight", data

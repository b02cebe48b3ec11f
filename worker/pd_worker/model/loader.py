"""From --model to a model on its device and its geometry."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from pd_worker.config import ModelConfig
from pd_worker.errors import ConfigError, ModelError
from pd_worker.model.attention import PAGED
from pd_worker.model.bars import bars_to
from pd_worker.model.base import ModelGeometry
from pd_worker.model.cores import usable_cores
from pd_worker.model.fingerprint import fingerprint
from pd_worker.model.probe import probe_model, refuse_config
from pd_worker.model.progress import Progress as Progress
from pd_worker.model.progress import portion
from pd_worker.model.store import resolve

_LOAD_ERRORS = (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that a ModelRunner can run."""

    module: PreTrainedModel
    geometry: ModelGeometry
    device: torch.device
    folder: Path
    """Where config, weights and tokenizer are."""


def load_model(config: ModelConfig, progress: Progress) -> LoadedModel:
    """Find, check and load a model; sets the number of torch's threads for this process.

    Raises ModelError where it cannot be found, read or served, ConfigError for a setting that
    does not fit it or this machine.
    """
    torch.set_num_threads(config.threads or min(torch.get_num_threads(), usable_cores()))
    device = pick_device(config.device)
    folder = resolve(config, portion(progress, 0.0, 0.5))
    hf_config = read_config(folder, config.trust_remote_code)
    refuse_config(hf_config)
    dtype = pick_dtype(config.dtype, hf_config, device)
    with bars_to(portion(progress, 0.5, 0.9), "loading weights"):
        module = _read_weights(folder, dtype, device, config.trust_remote_code)
    progress(0.9, "checking the model")
    weights = fingerprint(folder, config.revision)
    geometry = geometry_of(module, context_length=config.context_length, weights=weights)
    progress(1.0, "model loaded")
    return LoadedModel(module=module, geometry=geometry, device=device, folder=folder)


def pick_device(name: str) -> torch.device:
    """The device that --device names; raises ConfigError if it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError("--device", f"there is no {name} here", "use auto or cpu")
    return device


def pick_dtype(name: str, config: PretrainedConfig, device: torch.device) -> torch.dtype:
    """The element type of weights and KV."""
    own = getattr(config.get_text_config(), "dtype", None) or torch.float32
    if name == "auto":
        return torch.float32 if device.type == "cpu" else own
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def read_config(folder: Path, trust_remote_code: bool) -> PretrainedConfig:
    """The model's config; raises ModelError."""
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            folder, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, json.JSONDecodeError) as error:
        raise ModelError(f"{folder} holds no model that transformers knows: {error}") from error
    return config


def _read_weights(
    folder: Path, dtype: torch.dtype, device: torch.device, trust_remote_code: bool
) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=PAGED,
            trust_remote_code=trust_remote_code,
            device_map=None if device.type == "cpu" else {"": device},
            output_loading_info=True,
        )
    except _LOAD_ERRORS as error:
        raise ModelError(f"the model in {folder} cannot be loaded: {error}") from error
    model, info = loaded
    absent = sorted([*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])])
    if absent:
        raise ModelError(f"the weights in {folder} lack or misfit {', '.join(absent[:5])}")
    assert isinstance(model, PreTrainedModel)
    return model


def geometry_of(module: PreTrainedModel, *, context_length: int, weights: str) -> ModelGeometry:
    """Facts of a model that was loaded with PAGED attention; raises ModelError where it cannot be
    served. `context_length` 0 takes the model's own; `weights` is their fingerprint."""
    probe = probe_model(module)
    text = module.config.get_text_config()
    own = int(getattr(text, "max_position_embeddings", 0) or context_length or 4096)
    if context_length > own:
        problem = f"{context_length} is more than the model's own limit"
        raise ConfigError("--context-length", problem, f"use at most {own}")
    return ModelGeometry(
        model_type=module.config.model_type,
        num_layers=len(probe.calls),
        num_heads=probe.first.heads,
        num_kv_heads=probe.first.kv_heads,
        head_dim=probe.first.head_dim,
        vocab_size=probe.vocab_size,
        context_length=context_length or own,
        eos_ids=end_tokens(module),
        dtype=str(module.dtype).removeprefix("torch."),
        sliding_windows=tuple(call.window for call in probe.calls),
        fingerprint=weights,
    )


def end_tokens(module: PreTrainedModel) -> tuple[int, ...]:
    """Tokens that end an answer: the generation config's, else the config's."""
    generation: Any = module.generation_config
    ids = getattr(generation, "eos_token_id", None)
    if ids is None:
        ids = getattr(module.config.get_text_config(), "eos_token_id", None)
    return tuple(ids) if isinstance(ids, list | tuple) else () if ids is None else (ids,)

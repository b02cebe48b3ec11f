"""Loading from a folder: facts, progress, and clear words for what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pd_worker.config import ModelConfig
from pd_worker.errors import ConfigError, ModelError
from pd_worker.memory.allocator import PageAllocator
from pd_worker.memory.kv_pool import KVPool
from pd_worker.model.attention import make_attention
from pd_worker.model.attention_torch import TorchAttention
from pd_worker.model.fingerprint import fingerprint
from pd_worker.model.loader import LoadedModel, load_model, pick_device, pick_dtype, read_config
from pd_worker.model.runner import ModelRunner
from tests.worker.model.driver import Driver, Job
from tests.worker.model.tiny import greedy, reference


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    reference("llama").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def change(folder: Path, file: str, **fields: Any) -> None:
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def load(folder: Path, **config: Any) -> LoadedModel:
    return load_model(ModelConfig(model=str(folder), **config), lambda fraction, what: None)


def test_a_loaded_model_runs(folder: Path) -> None:
    loaded = load(folder)
    pool = KVPool(loaded.geometry.kv_layout(32, 16))
    runner = ModelRunner(
        loaded.module, loaded.geometry, pool, make_attention("auto", pool), num_rows=4
    )
    job = Job(row=1, prompt=[5, 6, 7], max_new_tokens=6)
    out = Driver(runner, PageAllocator(32, 16)).run([job])[0]
    assert out == greedy(reference("llama"), job.prompt, 6)


def test_progress_goes_from_nothing_to_all(folder: Path) -> None:
    seen: list[float] = []
    load_model(ModelConfig(model=str(folder)), lambda fraction, what: seen.append(fraction))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
    assert len(seen) > 5


@pytest.mark.parametrize(
    ("file", "fields", "eos"),
    [
        ("generation_config.json", {"eos_token_id": 9}, (9,)),
        ("generation_config.json", {"eos_token_id": [9, 11]}, (9, 11)),
        ("config.json", {"eos_token_id": 7}, (7,)),
    ],
    ids=["one", "several", "from config"],
)
def test_end_tokens_come_from_the_generation_config(
    folder: Path, file: str, fields: dict[str, Any], eos: tuple[int, ...]
) -> None:
    change(folder, file, **fields)
    assert load(folder).geometry.eos_ids == eos


def test_dtype_auto_is_float32_on_a_cpu_and_the_models_own_on_a_gpu(folder: Path) -> None:
    change(folder, "config.json", dtype="bfloat16")
    config = read_config(folder, False)
    assert pick_dtype("auto", config, torch.device("cpu")) is torch.float32
    assert pick_dtype("auto", config, torch.device("cuda")) is torch.bfloat16
    assert load(folder, dtype="float16").geometry.dtype == "float16"


def test_a_context_length_may_be_shorter_but_not_longer(folder: Path) -> None:
    assert load(folder, context_length=100).geometry.context_length == 100
    with pytest.raises(ConfigError, match=r"--context-length.*at most 512"):
        load(folder, context_length=513)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named() -> None:
    assert pick_device("auto").type == "cpu"
    with pytest.raises(ConfigError, match=r"--device.*cuda:1"):
        pick_device("cuda:1")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_flashinfer_without_a_gpu_is_refused_and_auto_takes_torch(folder: Path) -> None:
    pool = KVPool(load(folder).geometry.kv_layout(2, 16))
    assert isinstance(make_attention("auto", pool), TorchAttention)
    with pytest.raises(ConfigError, match="--attention-backend"):
        make_attention("flashinfer", pool)


def test_an_unknown_model_type_is_a_model_error(folder: Path) -> None:
    change(folder, "config.json", model_type="no_such_type", architectures=["NoSuchModel"])
    with pytest.raises(ModelError, match="no_such_type"):
        load(folder)


@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_broken_weights_are_a_model_error(folder: Path, damage: str) -> None:
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    weights.unlink() if damage == "missing" else weights.write_bytes(data[: len(data) // 2])
    with pytest.raises(ModelError, match=str(folder)):
        load(folder)


def test_a_missing_tensor_is_not_filled_with_noise(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj"):
        load(folder)


def test_equal_models_have_equal_fingerprints(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    change(copy, "config.json", transformers_version="0.0", dtype="bfloat16")
    assert fingerprint(copy) == fingerprint(folder)


@pytest.mark.parametrize("what", ["config", "first byte", "last byte", "revision"])
def test_other_models_have_other_fingerprints(folder: Path, what: str) -> None:
    before, revision = fingerprint(folder), ""
    data = bytearray((folder / "model.safetensors").read_bytes())
    match what:
        case "config":
            change(folder, "config.json", rms_norm_eps=1e-3)
        case "first byte":
            data[8 + int.from_bytes(data[:8], "little")] ^= 1
        case "last byte":
            data[-1] ^= 1
        case "revision":
            revision = "v2"
    (folder / "model.safetensors").write_bytes(data)
    assert fingerprint(folder, revision) != before

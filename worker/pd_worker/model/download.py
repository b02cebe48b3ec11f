"""Gets files out of Python packages without installing them into this environment."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from pd_worker.errors import ModelError
from pd_worker.model.progress import Progress

_POLL_S = 0.5


def unpack_packages(packages: tuple[str, ...], into: Path, nbytes: int, progress: Progress) -> None:
    """Download `packages` (name==version) without their dependencies and unpack them into `into`.

    All temporary files stay below `into.parent`. `nbytes`: about what they hold in all, for
    progress. Raises ModelError with the end of the installer's output.
    """
    work = into.parent
    log = work / "installer.log"
    command = [*_installer(work), "--no-deps", "--target", str(into), *packages]
    environment = {**os.environ, "TMPDIR": str(work)}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            _watch(process, work, nbytes, progress)
        finally:
            process.kill()
            process.wait()
    if process.returncode:
        end = " ".join(log.read_text(errors="replace").split()[-60:])
        raise ModelError(f"{', '.join(packages)} cannot be downloaded: {end}")


def _watch(process: subprocess.Popen[bytes], work: Path, nbytes: int, progress: Progress) -> None:
    """Wait for the installer; its bytes are counted twice, as they came and unpacked."""
    most = 0
    while True:
        try:
            process.wait(_POLL_S)
            return
        except subprocess.TimeoutExpired:
            most = max(most, _size(work))
            progress(min(0.99, most / (2 * nbytes)), f"downloading {nbytes >> 20} MiB")


def _installer(work: Path) -> list[str]:
    """`pip install` by what there is: pip here, uv, or a pip in an environment of its own."""
    if importlib.util.find_spec("pip"):
        return [*_pip(Path(sys.executable)), "--no-cache-dir"]
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv:
        return [uv, "pip", "install", "--python", sys.executable, "--cache-dir", str(work / "uv")]
    try:
        venv.create(work / "venv", with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        fix = "install pip or uv into this environment"
        raise ModelError(f"there is neither pip nor uv nor a working venv; {fix}") from error
    return [*_pip(work / "venv/bin/python"), "--no-cache-dir"]


def _pip(python: Path) -> list[str]:
    return [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-q"]


def _size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total

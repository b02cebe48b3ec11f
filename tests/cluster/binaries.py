"""The programs of a real Kubernetes, compiled from Go modules alone and kept in the cache.

`ensure("kube", "helm")` returns the folders that hold them, building what is missing. A build is
kept under a key of its inputs: the module's files and the flags. Several processes may ask at
once; one builds, the others wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pd_worker.config import cache_dir
from tests.cluster.golang import find_go


class BuildError(Exception):
    """Go could not build; the message is what it wrote last."""


SOURCES = Path(__file__).parent / "go"
TAGS = "no_btrfs,no_zfs,no_devmapper"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One module under go/ and the executables that are built from it."""

    module: str
    packages: dict[str, str]
    """Executable's name -> Go package."""
    version_of: str = ""
    """The module whose version in go.mod is stamped into `stamps`."""
    stamps: tuple[str, ...] = ()
    """Go variables that hold the version."""
    called: tuple[str, ...] = ()
    """Further names of the first executable."""
    manifests: tuple[str, ...] = ()
    """Folders of the first package's module that are kept beside it, such as its CRDs."""

    @property
    def source(self) -> Path:
        """The folder with go.mod."""
        return SOURCES / self.module

    @property
    def version(self) -> str:
        """Such as v1.36.3; empty where nothing is stamped."""
        found = re.search(rf"\s{re.escape(self.version_of)} (v\S+)", self._read("go.mod"))
        return found.group(1) if self.version_of and found else ""

    @property
    def folder(self) -> Path:
        """Where the executables lie once they are built."""
        made = (self.packages, self.called, self.manifests, self.link_flags, TAGS)
        inputs = [repr(made), *(self._read(file.name) for file in sorted(self.source.iterdir()))]
        key = hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:16]
        return cache_dir() / "cluster" / "bin" / f"{self.module}-{key}"

    @property
    def built(self) -> bool:
        """True where the cache has it."""
        return self.folder.is_dir()

    @property
    def link_flags(self) -> str:
        """For `go build -ldflags`."""
        return " ".join(["-s -w", *(f"-X {name}={self.version}" for name in self.stamps)])

    def _read(self, name: str) -> str:
        return (self.source / name).read_text()


_CONTAINERD = "github.com/containerd/containerd/v2"
PROGRAMS = {
    program.module: program
    for program in (
        Program(
            module="kube",
            packages={"kube": "."},
            version_of="k8s.io/kubernetes",
            stamps=(
                "k8s.io/component-base/version.gitVersion",
                "k8s.io/client-go/pkg/version.gitVersion",
            ),
            called=(
                *("etcd", "kube-apiserver", "kube-controller-manager", "kubectl"),
                *("kube-scheduler", "kubelet", "kube-proxy"),
            ),
        ),
        Program(module="helm", packages={"helm": "helm.sh/helm/v4/cmd/helm"}),
        Program(
            module="node",
            packages={
                name: f"{_CONTAINERD}/cmd/{name}"
                for name in ("containerd", "containerd-shim-runc-v2", "ctr")
            },
            version_of=_CONTAINERD,
            stamps=(f"{_CONTAINERD}/version.Version",),
        ),
        Program(module="dns", packages={"coredns": "."}),
        Program(
            module="metrics",
            packages={"metrics-server": "sigs.k8s.io/metrics-server/cmd/metrics-server"},
        ),
        Program(module="kwok", packages={"kwok": "sigs.k8s.io/kwok/cmd/kwok"}),
        Program(module="pause", packages={"pause": "."}),
        Program(
            module="lws",
            packages={"lws-controller": "sigs.k8s.io/lws/cmd"},
            manifests=("config/crd/bases", "config/webhook"),
        ),
        Program(
            module="keda",
            packages={
                "keda-operator": "github.com/kedacore/keda/v2/cmd/operator",
                "keda-adapter": "github.com/kedacore/keda/v2/cmd/adapter",
            },
            manifests=("config/crd/bases",),
        ),
    )
}


def ensure(*names: str) -> list[Path]:
    """The folders of these programs, built where the cache lacks them (minutes, then never)."""
    programs = [PROGRAMS[name] for name in names]
    if not all(program.built for program in programs):
        with _lock():
            missing = [program for program in programs if not program.built]
            if missing:
                _build_all(missing)
    return [program.folder for program in programs]


@contextlib.contextmanager
def _lock() -> Iterator[None]:
    home = cache_dir() / "cluster" / "bin"
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _build_all(programs: list[Program]) -> None:
    """Build with Go caches of our own, which grow by gigabytes and are deleted afterwards."""
    go = find_go()
    scratch = Path(tempfile.mkdtemp(prefix="build-", dir=cache_dir() / "cluster"))
    environment = os.environ | {
        "CGO_ENABLED": "0",
        "GOTOOLCHAIN": "local",
        "GOCACHE": str(scratch / "cache"),
        "GOPATH": str(scratch / "path"),
        "GOFLAGS": "-mod=readonly -modcacherw -trimpath -buildvcs=false",
    }
    try:
        for program in programs:
            _build(go, program, scratch / program.module, environment)
    finally:
        shutil.rmtree(scratch)


def _build(go: Path, program: Program, output: Path, environment: dict[str, str]) -> None:
    began = time.monotonic()
    print(f"cluster: building {program.module} ...", end="", file=sys.stderr, flush=True)
    for name, package in program.packages.items():
        flags = ["-tags", TAGS, "-ldflags", program.link_flags, "-o", str(output / name)]
        _run([go, "build", *flags, package], program.source, environment)
    for folder in program.manifests:
        package = next(iter(program.packages.values()))
        where = _run([go, "list", "-f", "{{.Module.Dir}}", package], program.source, environment)
        shutil.copytree(Path(where.strip()) / folder, output / folder)
    for name in program.called:
        (output / name).symlink_to(next(iter(program.packages)))
    for old in program.folder.parent.glob(f"{program.module}-*"):
        shutil.rmtree(old)
    output.rename(program.folder)
    print(f" {time.monotonic() - began:.0f} s", file=sys.stderr)


def _run(command: list[str | Path], folder: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError("\n".join(done.stderr.splitlines()[-20:]))
    return done.stdout

"""pytest fixtures: a real Kubernetes API, shared by the whole run; each test has its namespace."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tests.cluster import images
from tests.cluster.binaries import PROGRAMS
from tests.cluster.client import Client
from tests.cluster.control_plane import ControlPlane, Ports
from tests.cluster.target import Target, local, named


def cannot(reason: str) -> NoReturn:
    """Skip what this machine cannot run; fail where PDSERVE_TEST_ALL says that it must."""
    if os.environ.get("PDSERVE_TEST_ALL"):
        pytest.fail(reason)
    pytest.skip(reason)


def programs(*names: str) -> list[Path]:
    """Folders of programs. Building takes minutes and is no part of a test."""
    missing = [name for name in names if not PROGRAMS[name].built]
    if missing:
        cannot(f"{', '.join(missing)}: not built, run `python -m tests.cluster build`")
    return [PROGRAMS[name].folder for name in names]


@pytest.fixture(scope="session")
def helm() -> Path:
    """The real helm."""
    [folder] = programs("helm")
    return folder / "helm"


@contextmanager
def running(state: Path) -> Iterator[tuple[ControlPlane, Client]]:
    """A control plane whose state lies in this folder, while it runs."""
    [kube] = programs("kube")
    plane = ControlPlane(state=state, programs=kube, ports=Ports.free())
    helm_program = PROGRAMS["helm"].folder / "helm"
    try:
        plane.start()
        client = Client(kubeconfig=plane.kubeconfig, programs=kube, helm_program=helm_program)
        yield plane, client
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """etcd, API server and controllers on loopback, as any user. No node: pods stay Pending."""
    with running(tmp_path_factory.mktemp("control-plane")) as (_, client):
        yield client


def installed(tool: str, module: str) -> Path:
    """A tool of this machine, else the one that we build."""
    found = shutil.which(tool)
    return Path(found) if found else programs(module)[0] / tool


@pytest.fixture(scope="session")
def target() -> Iterator[Target]:
    """A cluster that runs pods, with the images of this checkout."""
    own = os.environ.get("PDSERVE_E2E_KUBECONFIG")
    if own:
        yield named(own, installed("kubectl", "kube"), installed("helm", "helm"))
        return
    if os.geteuid() != 0:
        cannot("a node needs root; PDSERVE_E2E_KUBECONFIG may name a cluster of yours")
    programs("kube", "helm", "node", "dns", "metrics", "pause")
    if not all(image.archive.is_file() for image in (images.OPERATOR, images.WORKER)):
        cannot("the images are not built: run `python -m tests.cluster build`")
    with local() as cluster:
        yield cluster


@pytest.fixture
def namespace(control_plane: Client) -> Iterator[str]:
    """A namespace of its own on the control plane; everything in it goes afterwards."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")

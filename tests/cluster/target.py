"""The cluster of the end-to-end tests: the node of this machine, or any that is named.

PDSERVE_E2E_KUBECONFIG names one of your own (kind, k3s, a cloud's). It must be able to pull or hold
the two images, PDSERVE_E2E_OPERATOR_IMAGE and PDSERVE_E2E_WORKER_IMAGE, and find the model that
PDSERVE_E2E_MODEL names (as in spec.model.source; SmolLM2-135M-Instruct). PDSERVE_E2E_MODEL_IMAGE
may name an image with the files of that model at its root.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pd_worker.config import cache_dir
from tests.cluster import images, node
from tests.cluster.client import Client

MODEL_IMAGE = "localhost/smollm2-135m:1"
MODEL = f"hostpath://{node.STATE}/models/smollm2-135m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A cluster that runs pods, and what to run on it."""

    client: Client
    operator_image: str = images.OPERATOR.reference
    worker_image: str = images.WORKER.reference
    model: str = MODEL
    model_image: str = ""
    """Holds the model's files; empty where there is none."""


def named(kubeconfig: str, kubectl: Path, helm: Path) -> Target:
    """The cluster that the environment names."""
    set_to = os.environ.get
    client = Client(kubeconfig=Path(kubeconfig), programs=kubectl.parent, helm_program=helm)
    return Target(
        client=client,
        operator_image=set_to("PDSERVE_E2E_OPERATOR_IMAGE", images.OPERATOR.reference),
        worker_image=set_to("PDSERVE_E2E_WORKER_IMAGE", images.WORKER.reference),
        model=set_to("PDSERVE_E2E_MODEL", MODEL),
        model_image=set_to("PDSERVE_E2E_MODEL_IMAGE", ""),
    )


@contextmanager
def local() -> Iterator[Target]:
    """The node of this machine: the one that is up already, else one for this run alone."""
    cluster = node.Node(programs=node.Programs.ready())
    found = cluster.healthy()
    try:
        if not found:
            cluster.up()
        for image in (images.OPERATOR, images.WORKER):
            cluster.load(images.build(image))
        cluster.load(images.model_folder(MODEL_IMAGE, cache_dir() / "models" / "smollm2-135m"))
        yield Target(client=cluster.client, model_image=MODEL_IMAGE)
    finally:
        if not found:
            node.down()

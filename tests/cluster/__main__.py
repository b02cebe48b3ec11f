"""For the make targets: python -m tests.cluster build [PROGRAM ...] | up | down | load TAR ...

build: programs and, as root, images; needs minutes once. up: a cluster that stays. down: removes
every trace of it. load: images into it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.cluster import images, node
from tests.cluster.binaries import PROGRAMS, BuildError, ensure
from tests.cluster.packages import MissingError
from tests.cluster.processes import NotReadyError

NODE_PROGRAMS = ("node", "dns", "metrics", "pause")
NEXT = """\
The cluster is up, with the images {images}. In this shell:

  export KUBECONFIG={kubeconfig} PATH={path}:$PATH
  kubectl get nodes

docs/quickstart-kubernetes.md goes on from here; `make cluster-down` removes every trace.
"""


def main(arguments: list[str]) -> int:
    """Run one command line."""
    match arguments:
        case ["build", *names]:
            build(names)
        case ["up"]:
            return up()
        case ["down"]:
            node.down()
        case ["load", *archives]:
            cluster = node.Node(programs=node.Programs.ready())
            for archive in archives:
                cluster.load(Path(archive))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def build(names: list[str]) -> None:
    """Everything that this user can run, or only the programs that are named."""
    root = os.geteuid() == 0
    ensure(*(names or [name for name in PROGRAMS if root or name not in NODE_PROGRAMS]))
    if not names and root:
        for image in (images.OPERATOR, images.WORKER):
            images.build(image)


def up() -> int:
    """Leave a cluster with the project's images up; one that is up already gets them afresh."""
    cluster = node.Node(programs=node.Programs.ready())
    if not cluster.healthy():
        cluster.up()
    for image in (images.OPERATOR, images.WORKER):
        cluster.load(images.build(image))
    names = " and ".join(image.reference for image in (images.OPERATOR, images.WORKER))
    path = f"{cluster.programs.kube}:{cluster.programs.helm}"
    print(NEXT.format(images=names, kubeconfig=cluster.kubeconfig, path=path))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (BuildError, MissingError, NotReadyError, PermissionError) as problem:
        sys.exit(f"cluster: {problem}")

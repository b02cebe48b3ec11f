"""`python -m tests.cluster build | up | down | load IMAGE.tar ...`: what the make targets call."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster import images, node
from tests.cluster.binaries import PROGRAMS, BuildError, ensure
from tests.cluster.packages import MissingError
from tests.cluster.processes import NotReadyError

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
            ensure(*(names or PROGRAMS))
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

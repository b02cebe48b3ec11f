"""Which ports the workers of a deployment use."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pd_operator.names import Role
from pd_operator.resource import Resource

BLOCK = 4
"""Ports of one deployment on a host's network."""
DIST_INIT = 20000
"""Where the ranks of a worker of several nodes meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Of one role."""

    http: int
    bootstrap: int
    dist_init: int


def ports_of(resource: Resource, role: Role) -> Ports:
    """The configured ones; on the host's network a block of the range, chosen by name.

    Two pods whose ports collide are kept apart by the scheduler, which knows their host ports.
    SGLang's router knows one HTTP port for both roles.
    """
    spec = resource.spec
    if not spec.rdma.host_network:
        return Ports(
            http=spec.engine.port, bootstrap=spec.transfer.bootstrap_port, dist_init=DIST_INIT
        )
    first, last = spec.rdma.host_ports.first, spec.rdma.host_ports.last
    digest = hashlib.sha256(str(resource.key).encode()).digest()
    slot = int.from_bytes(digest[:4], "big") % ((last - first + 1) // BLOCK)
    base = first + slot * BLOCK
    apart = role == "decode" and spec.engine.type == "Pdserve"
    return Ports(http=base + apart, bootstrap=base + 2, dist_init=base + 3)

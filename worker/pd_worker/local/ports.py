"""Free TCP ports for the parts of a local cluster."""

from __future__ import annotations

import itertools
import random
import socket

# Below the kernel's range for outgoing connections, so that none of them takes a port between
# the moment it is found free and the moment its part binds it; above what Mooncake picks.
_RANGE = range(20_000, 30_000)


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """`count` different ports that nobody listens on at `host` now."""
    candidates = random.sample(_RANGE, len(_RANGE))
    return list(itertools.islice((port for port in candidates if is_free(host, port)), count))


def is_free(host: str, port: int) -> bool:
    """True where `host:port` could be listened on now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True

"""Every setting of the router, as small frozen parts; the command line is generated from them.

The text under a field is its help. Nothing here reads the environment: config.py does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import tyro

from pd_worker.errors import ConfigError

PolicyName = Literal["random", "round_robin", "power_of_two", "cache_aware"]
Urls = tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]]
"""A flag that may be repeated and may take several values each time."""


def _at_least(part: object, bound: float, *names: str) -> None:
    for name in names:
        if getattr(part, name) < bound:
            flag = "--" + name.replace("_", "-")
            raise ConfigError(flag, f"is below {bound:g}", "give a larger number")


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOptions:
    """How the router watches workers."""

    health_interval_s: float = 2.0
    """Seconds between two looks at a worker's /ready and /server_info."""
    health_timeout_s: float = 5.0
    """A look that takes longer counts as silence. Three in a row: the worker is taken for dead
    and what runs on it is ended."""
    breaker_failures: int = 5
    """Requests in a row that a worker must fail (5xx, no connection) until it gets none; 4xx is
    the client's fault and never counts."""
    breaker_cooldown_s: float = 5.0
    """Then one request tries it after so long; each failed try doubles the pause, up to 8 times
    this."""

    def __post_init__(self) -> None:
        _at_least(self, 0.01, "health_interval_s", "health_timeout_s", "breaker_cooldown_s")
        _at_least(self, 1, "breaker_failures")


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """How much the router takes on, and for how long."""

    max_inflight: int = 2048
    """Requests that are with workers at a time."""
    max_queued: int = 1024
    """Requests that wait here for one of those places; one more is answered 429."""
    max_attempts: int = 3
    """Pairs that one request may be sent to, until the first byte of its answer."""
    worker_wait_s: float = 0.0
    """Longest wait of a request for a worker when none can serve it, as while the only one
    restarts; then it ends with 503. /ready stays good for so long after it was good last."""
    connect_timeout_s: float = 5.0
    """Longest wait for a connection to a worker."""
    request_timeout_s: float = 1800.0
    """Longest life of a request with all its attempts; then it ends with 504."""
    drain_timeout_s: float = 60.0
    """After SIGTERM: longest wait for running requests; a second SIGTERM ends at once."""

    def __post_init__(self) -> None:
        _at_least(self, 1, "max_inflight", "max_attempts")
        _at_least(self, 0, "max_queued", "worker_wait_s", "drain_timeout_s")
        _at_least(self, 0.01, "connect_timeout_s", "request_timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """Workers that a Kubernetes cluster lists; for a router in a pod, with the right to get, list
    and watch endpointslices in the namespace."""

    kubernetes_namespace: str = ""
    """Namespace of the Services; empty: do not ask Kubernetes."""
    kubernetes_prefill: str = ""
    """Headless Service of the prefill workers, with ports named http and bootstrap."""
    kubernetes_decode: str = ""
    """Headless Service of the decode workers, with a port named http."""
    kubernetes_api: str = "https://kubernetes.default.svc"
    """URL of the API server."""

    def __post_init__(self) -> None:
        if self.kubernetes_namespace and not (self.kubernetes_prefill and self.kubernetes_decode):
            fix = "give --kubernetes-prefill and --kubernetes-decode"
            raise ConfigError("--kubernetes-namespace", "names no Services", fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterOptions:
    """All of one router."""

    prefill: Urls = ()
    """Prefill workers, each URL[,BOOTSTRAP_PORT]; without a port the worker is asked for it."""
    decode: Urls = ()
    """URLs of decode workers."""
    worker: Urls = ()
    """URLs of unified workers, which serve a request alone."""
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 or :: for all."""
    port: int = 8000
    """Port to listen on; 0 picks a free one, which is printed."""
    policy: PolicyName = "cache_aware"
    """Who gets a prompt among prefill (or unified) workers. cache_aware: whoever saw the longest
    equal beginning, unless it is much busier than the least busy one."""
    decode_policy: PolicyName = "power_of_two"
    """Who decodes. power_of_two: the less busy one of two that are drawn at random."""
    trust_client_pd_fields: bool = False
    """Take bootstrap_host, bootstrap_port and bootstrap_room from clients. Off, because they
    name the address that workers connect to."""
    health: HealthOptions = field(default_factory=HealthOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line that is written; requests are logged at info."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ConfigError("--port", "is no port", "use 0 to 65535")

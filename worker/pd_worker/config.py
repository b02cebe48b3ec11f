"""Every setting of a worker, as small frozen parts, and the only readers of the environment.

The command line is generated from these classes (tyro): the text under a field is its help. They
are validated when they are built; parts are handed down, never the whole. Composition: launch/.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pd_worker.errors import ConfigError

Role = Literal["unified", "prefill", "decode"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]

PAGE_SIZES = (1, 16, 64)


def cache_dir() -> Path:
    """Where models and other things that can be made again are kept.

    PDSERVE_CACHE, else $XDG_CACHE_HOME/pdserve, else ~/.cache/pdserve.
    """
    own = os.environ.get("PDSERVE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pdserve"


def shared_secret() -> str:
    """PDSERVE_SECRET: one secret for a deployment; empty means an open, trusted network.

    With it the bootstrap registry asks for a token and every ZMQ socket uses CURVE. It is read
    from the environment and never from the command line, where `ps` would show it.
    """
    return os.environ.get("PDSERVE_SECRET", "")


def _check(ok: bool, field_name: str, problem: str, fix: str) -> None:
    if not ok:
        raise ConfigError("--" + field_name.replace("_", "-"), problem, fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """What is served and how it is computed."""

    model: str
    """The model: a folder, a .gguf file, a name that `pdserve fetch` knows (smollm2-135m), or a
    hub id such as Qwen/Qwen3-0.6B where there is a network."""
    served_model_name: str = ""
    """Name in the API; empty takes the last part of --model."""
    revision: str = ""
    """Revision of a hub id; part of the pairing key."""
    dtype: Dtype = "auto"
    """Of weights and KV. auto: the checkpoint's own on a GPU, float32 on a CPU (exact, and there
    bfloat16 is not reliably faster)."""
    device: str = "auto"
    """auto, cpu or cuda[:N]. auto takes cuda where there is one."""
    attention_backend: Literal["auto", "torch", "flashinfer"] = "auto"
    """auto: flashinfer on a GPU that has it installed, else torch (the reference)."""
    context_length: int = 0
    """Longest prompt + output in tokens; 0 takes the model's own limit."""
    threads: int = 0
    """CPU threads of the forward; 0 takes the cores this process may use, within its container's
    CPU limit."""
    trust_remote_code: bool = False
    """Run model code that a hub repository brings; off, because it is arbitrary code."""

    def __post_init__(self) -> None:
        _check(bool(self.model), "model", "is empty", "name a folder, file or model")
        _check(self.context_length >= 0, "context_length", "is negative", "use 0 or more")
        _check(self.threads >= 0, "threads", "is negative", "use 0 or more")
        ok = self.device in ("auto", "cpu", "cuda") or self.device.startswith("cuda:")
        _check(ok, "device", f"unknown device {self.device!r}", "use auto, cpu, cuda or cuda:N")

    @property
    def name(self) -> str:
        """The name in the API."""
        return self.served_model_name or Path(self.model.rstrip("/")).name.removesuffix(".gguf")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """The KV pool."""

    page_size: int = 16
    """Tokens in a KV page: 1, 16 or 64. 16 keeps waste below half a page a request and one
    page of all layers large enough for one efficient write."""
    max_total_tokens: int = 0
    """Size of the KV pool in tokens; 0 sizes it by --mem-fraction."""
    mem_fraction: float = 0.0
    """Share of the free device memory that the KV pool takes when --max-total-tokens is 0.
    0 means 0.8 on a GPU and 0.1 on a CPU, where other programs live as well."""
    prefix_cache: bool = True
    """Keep the KV of finished prompts and reuse it for equal prefixes (radix tree). Never on
    decode, whose KV comes from prefill."""
    poison_freed: bool = False
    """Debug: fill freed pages with NaN, so that a read of a freed page shows."""

    def __post_init__(self) -> None:
        _check(
            self.page_size in PAGE_SIZES,
            "page_size",
            f"{self.page_size} is not supported",
            "use 1, 16 or 64",
        )
        _check(self.max_total_tokens >= 0, "max_total_tokens", "is negative", "use 0 or more")
        _check(0 <= self.mem_fraction < 1, "mem_fraction", "is out of range", "use 0 to 0.95")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How requests are batched."""

    max_running_requests: int = 64
    """Requests that decode together at most."""
    max_queued_requests: int = 1024
    """Requests that wait at most; one more is answered 429."""
    chunked_prefill_size: int = 512
    """Prompt tokens computed in one step at most; longer prompts are cut, so that a long one does
    not hold back the others, and its chunks are sent while the next is computed."""
    overlap: bool = False
    """Do the CPU work of one step while the next one runs on the device. Off by default: on a CPU
    both use the same cores."""
    log_interval_s: float = 10.0
    """A line about load every so many seconds while there is any; 0 for none."""

    def __post_init__(self) -> None:
        for name in ("max_running_requests", "max_queued_requests", "chunked_prefill_size"):
            _check(getattr(self, name) >= 1, name, "must be at least 1", "give a larger number")


@dataclass(frozen=True, slots=True, kw_only=True)
class DisaggConfig:
    """Prefill/decode disaggregation; without effect on the unified role."""

    kv_transport: str = "auto"
    """How KV moves: auto, shm, mooncake, nixl, fake, or the name of an installed plug-in. auto: shm
    between workers that prove to share a host, else mooncake. fake moves nothing (benchmarks)."""
    bootstrap_port: int = 8998
    """Prefill: port of the BootstrapServer; 0 picks a free one."""
    advertise_host: str = ""
    """Address at which peers reach this worker; empty: --host, or where that is a wildcard the
    address of the default route."""
    mooncake_protocol: Literal["tcp", "rdma"] = "tcp"
    """rdma needs an ACTIVE InfiniBand or RoCE port and never falls back to tcp."""
    ib_device: str = ""
    """RDMA devices for Mooncake, comma separated; empty lets it choose by topology."""
    bootstrap_timeout_s: float = 120.0
    """Longest wait for the other side to appear (prefill: for the pages' addresses; decode: for
    the prefill's registration)."""
    transfer_timeout_s: float = 300.0
    """Longest wait of decode from publishing its pages to the last byte; spans prefill's queue
    and forward."""
    pre_alloc_size: int = 0
    """Decode: request slots beyond --max-running-requests for requests whose KV is on its way;
    0 means as many again."""
    num_reserved_decode_tokens: int = 64
    """Decode: free tokens kept for each running request before pages are promised to a new one,
    so that pre-allocation does not force retraction."""
    kv_checksum: bool = False
    """Send a checksum of the KV with it and refuse a request whose KV does not match. Must be
    equal on both sides."""
    lease_ttl_s: float = 15.0
    """Prefill: a registration not renewed for so long is gone."""

    def __post_init__(self) -> None:
        for name in ("bootstrap_timeout_s", "transfer_timeout_s", "lease_ttl_s"):
            _check(getattr(self, name) > 0, name, "must be positive", "give seconds above 0")
        _check(0 <= self.bootstrap_port < 65536, "bootstrap_port", "is no port", "use 0 to 65535")
        for name in ("pre_alloc_size", "num_reserved_decode_tokens"):
            _check(getattr(self, name) >= 0, name, "is negative", "use 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The HTTP side."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 or :: for all."""
    port: int = 8000
    """Port to listen on; 0 picks a free one, which is printed."""
    drain_timeout_s: float = 60.0
    """After SIGTERM: longest wait for running requests and transfers; a second SIGTERM ends at
    once."""
    request_timeout_s: float = 1800.0
    """Longest life of a request; then it ends with 504."""
    sse_keepalive_s: float = 15.0
    """A comment line goes to a waiting stream every so often, so that proxies keep it open."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe log line that is written."""

    def __post_init__(self) -> None:
        _check(0 <= self.port < 65536, "port", "is no port", "use 0 to 65535")
        for name in ("drain_timeout_s", "request_timeout_s", "sse_keepalive_s"):
            _check(getattr(self, name) > 0, name, "must be positive", "give seconds above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """All of one worker."""

    role: Role = "unified"
    """unified: both phases in one worker. prefill, decode: one half of a pair."""
    model: ModelConfig
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    disagg: DisaggConfig = field(default_factory=DisaggConfig)
    server: ServerConfig = field(default_factory=ServerConfig)

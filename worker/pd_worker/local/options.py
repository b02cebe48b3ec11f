"""Options of `pdserve up`. The parts that workers need as well are the workers' own classes."""

from __future__ import annotations

from dataclasses import dataclass, field

from pd_worker.config import DisaggConfig, MemoryConfig, ModelConfig, SchedulerConfig
from pd_worker.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """A local cluster: a router, and N prefill + M decode workers or U unified ones behind it.

    Options of a worker (--dtype, --kv-transport, --page-size …) are handed to every worker.
    """

    model: ModelConfig
    prefill: int = 1
    """Prefill workers."""
    decode: int = 1
    """Decode workers."""
    unified: int = 0
    """Unified workers instead of pairs, to compare; --prefill and --decode then do not count."""
    host: str = "127.0.0.1"
    """Address the router listens on; the workers stay on 127.0.0.1."""
    port: int = 8000
    """Port the router listens on; 0 picks a free one."""
    log_dir: str = ""
    """Folder for one log file a part; empty makes a new one under the temporary folder."""
    pin_cores: bool = True
    """Give each worker cores of its own, so that prefill never takes decode's."""
    start_timeout_s: float = 900.0
    """Longest wait until all parts are ready (loading a model from a hub takes its time)."""
    stop_timeout_s: float = 15.0
    """Ctrl-C lets requests finish for so long, then ends the parts at once."""
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    disagg: DisaggConfig = field(default_factory=DisaggConfig)

    def __post_init__(self) -> None:
        for name in ("prefill", "decode", "unified"):
            if getattr(self, name) < 0:
                raise ConfigError(f"--{name}", "is negative", "use 0 or more")
        if not self.unified and not (self.prefill and self.decode):
            raise ConfigError(
                "--prefill", "a pair needs a prefill and a decode worker", "use 1 or more of both"
            )
        if not 0 <= self.port < 65536:
            raise ConfigError("--port", "is no port", "use 0 to 65535")
        for name in ("start_timeout_s", "stop_timeout_s"):
            if getattr(self, name) <= 0:
                flag = "--" + name.replace("_", "-")
                raise ConfigError(flag, "must be positive", "give seconds above 0")

    @property
    def roles(self) -> list[str]:
        """The role of each worker to start."""
        if self.unified:
            return ["unified"] * self.unified
        return ["prefill"] * self.prefill + ["decode"] * self.decode

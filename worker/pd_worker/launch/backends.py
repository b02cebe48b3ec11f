"""From --kv-transport to transfer engines.

A backend is a function from BackendOptions to a TransferEngine. Those below come with pdserve;
other packages add theirs through the entry-point group `pdserve.kv_backends`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points

from pd_worker.config import DisaggConfig
from pd_worker.errors import BackendUnavailable, ConfigError
from pd_worker.transfer.engine import TransferEngine
from pd_worker.transfer.engines.fake import FakeEngine
from pd_worker.transfer.engines.mooncake import MooncakeEngine
from pd_worker.transfer.engines.nixl import NixlEngine
from pd_worker.transfer.engines.shm import ShmEngine

log = logging.getLogger(__name__)

GROUP = "pdserve.kv_backends"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """What an engine may want to know."""

    host: str
    """Address at which peers reach this worker."""
    disagg: DisaggConfig


Backend = Callable[[BackendOptions], TransferEngine]


def _mooncake(options: BackendOptions) -> TransferEngine:
    disagg = options.disagg
    return MooncakeEngine(options.host, protocol=disagg.mooncake_protocol, device=disagg.ib_device)


BUILT_IN: dict[str, Backend] = {
    "shm": lambda options: ShmEngine(),
    "mooncake": _mooncake,
    "nixl": lambda options: NixlEngine(options.host),
    "fake": lambda options: FakeEngine(),
}


def make_engines(options: BackendOptions, *, on_host: bool) -> list[TransferEngine]:
    """The engines of --kv-transport, preferred first; auto takes all that run here.

    `on_host`: the KV is in host memory, which shm needs. Raises ConfigError for an unknown name and
    BackendUnavailable where none runs, with the reasons.
    """
    name = options.disagg.kv_transport
    engines: list[TransferEngine] = []
    problems: list[str] = []
    for each in _names(name, on_host):
        try:
            engines.append(_backend(each)(options))
        except BackendUnavailable as error:
            problems.append(str(error))
    if not engines:
        raise BackendUnavailable(f"no KV transport runs here: {'; '.join(problems)}")
    for problem in problems:
        log.warning("going on without a KV transport: %s", problem)
    return engines


def _names(name: str, on_host: bool) -> list[str]:
    if name == "auto":
        return ["shm", "mooncake"] if on_host else ["mooncake"]
    if name == "shm" and not on_host:
        raise ConfigError(
            "--kv-transport", "shm needs the KV in host memory", "use mooncake, or --device cpu"
        )
    return [name]


def _backend(name: str) -> Backend:
    if name in BUILT_IN:
        return BUILT_IN[name]
    plugins = entry_points(group=GROUP)
    if name not in plugins.names:
        known = ", ".join(["auto", *BUILT_IN, *plugins.names])
        raise ConfigError("--kv-transport", f"there is no backend {name!r}", f"use one of {known}")
    backend: Backend = plugins[name].load()
    return backend

"""Builds the scheduler of a role out of its parts: the one place that knows which role needs what.

Runs in the scheduler process, once.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from pd_worker.config import Role, WorkerConfig, shared_secret
from pd_worker.disagg.checksum import Checksum, crc32_checksum, no_checksum
from pd_worker.disagg.consensus import SoloGroup
from pd_worker.disagg.decode import SchedulerDisaggregationDecodeMixin
from pd_worker.disagg.metadata import LAYOUT, SLOT, MetadataBuffers
from pd_worker.disagg.prefill import SchedulerDisaggregationPrefillMixin
from pd_worker.launch.backends import BackendOptions, make_engines
from pd_worker.memory.allocator import PageAllocator
from pd_worker.memory.free_memory import default_fraction, free_nbytes
from pd_worker.memory.kv_pool import KVPool
from pd_worker.memory.layout import KVLayout
from pd_worker.memory.pages import pages_for
from pd_worker.memory.pools import DecodeReqToTokenPool, ReqToTokenPool
from pd_worker.memory.prefix_cache import BasePrefixCache, NoPrefixCache, PrefixCache
from pd_worker.messages import SchedulerReady
from pd_worker.model.attention import make_attention
from pd_worker.model.base import ModelGeometry
from pd_worker.model.grammar import GrammarCompiler
from pd_worker.model.loader import LoadedModel, Progress, load_model
from pd_worker.model.runner import ModelRunner
from pd_worker.scheduler.channel import Channel
from pd_worker.scheduler.grammar_queue import GrammarQueue
from pd_worker.scheduler.request_memory import RequestMemory
from pd_worker.scheduler.scheduler import Scheduler
from pd_worker.transfer.args import KV_LAYOUT, PROTOCOL_VERSION, KVArgs, LinkOptions
from pd_worker.transfer.base import BaseKVManager
from pd_worker.transfer.decode import DecodeKVManager
from pd_worker.transfer.engines.shm import ShmEngine
from pd_worker.transfer.prefill import PrefillKVManager


class PrefillScheduler(SchedulerDisaggregationPrefillMixin, Scheduler):
    """The scheduler of a prefill worker."""


class DecodeScheduler(SchedulerDisaggregationDecodeMixin, Scheduler):
    """The scheduler of a decode worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A scheduler that is ready to loop."""

    scheduler: Scheduler
    ready: SchedulerReady
    registered: Callable[[], bool]
    """Whether peers can find this worker."""
    close: Callable[[], None]
    """Unregister, end transfers, release what the process holds."""


def assemble(config: WorkerConfig, channel: Channel, progress: Progress) -> Assembly:
    """Load the model and build the role's scheduler.

    Raises ConfigError, ModelError or BackendUnavailable with what is wrong and how to mend it.
    """
    model = load_model(config.model, progress)
    fixed = model.geometry.kv_layout(0, config.memory.page_size)
    device = model.device
    layout = fixed.sized(config.memory, free_nbytes(device), default_fraction(device))
    rows = _rows(config, model.geometry)
    build = {"unified": _unified, "prefill": _prefill, "decode": _decode}[config.role]
    return build(config, _Base(config, model, layout, rows, channel))


class _Base:
    """What every role has, built over the memory that the role provides."""

    def __init__(
        self,
        config: WorkerConfig,
        model: LoadedModel,
        layout: KVLayout,
        rows: ReqToTokenPool,
        channel: Channel,
    ) -> None:
        self.config, self.model, self.layout, self.rows = config, model, layout, rows
        self.channel = channel
        self.geometry = model.geometry
        self.incarnation = uuid.uuid4().hex
        self.pairing_key = pairing_key(model.geometry, layout, config.disagg.kv_checksum)

    def parts(self, pool: KVPool, *, cached: bool) -> dict[str, Any]:
        """Arguments of Scheduler."""
        config, geometry = self.config, self.geometry
        on_free = pool.poison if config.memory.poison_freed else None
        allocator = PageAllocator(pool.num_pages, self.layout.page_size, on_free=on_free)
        cache: BasePrefixCache = PrefixCache(allocator) if cached else NoPrefixCache()
        attention = make_attention(config.model.attention_backend, pool)
        return {
            "config": config.scheduler,
            "runner": ModelRunner(
                self.model.module, geometry, pool, attention, num_rows=self.rows.num_rows
            ),
            "memory": RequestMemory(self.rows, allocator, cache, pool),
            "channel": self.channel,
            "grammars": GrammarQueue(
                GrammarCompiler(self.model.folder, geometry).compile, self.channel.wake
            ),
            "eos_ids": geometry.eos_ids,
            "vocab_size": geometry.vocab_size,
            "max_request_tokens": self.max_request_tokens,
            "reserved_decode_tokens": config.disagg.num_reserved_decode_tokens,
        }

    @property
    def max_request_tokens(self) -> int:
        """Prompt + output of the longest request that fits."""
        capacity = (self.layout.num_pages - 1) * self.layout.page_size
        return min(self.geometry.context_length, capacity)

    def ready(self, transports: list[str]) -> SchedulerReady:
        """What /server_info tells of this worker."""
        geometry = self.geometry
        return SchedulerReady(
            max_total_tokens=(self.layout.num_pages - 1) * self.layout.page_size,
            max_request_tokens=self.max_request_tokens,
            page_size=self.layout.page_size,
            vocab_size=geometry.vocab_size,
            pairing_key=self.pairing_key,
            kv_transports=transports,
            facts={
                "incarnation": self.incarnation,
                "dtype": geometry.dtype,
                "device": str(self.model.device),
                "model_type": geometry.model_type,
                "num_layers": geometry.num_layers,
                "num_kv_heads": geometry.num_kv_heads,
                "head_dim": geometry.head_dim,
                "context_length": geometry.context_length,
                "kv_bytes_per_token": self.layout.page_nbytes // self.layout.page_size,
            },
        )


def _unified(config: WorkerConfig, base: _Base) -> Assembly:
    pool = KVPool(base.layout, device=base.model.device)
    return Assembly(
        scheduler=Scheduler(**base.parts(pool, cached=config.memory.prefix_cache)),
        ready=base.ready([]),
        registered=lambda: True,
        close=lambda: None,
    )


def _prefill(config: WorkerConfig, base: _Base) -> Assembly:
    link = _Link(config, base, num_slots=4 * config.scheduler.max_running_requests)
    host = config.disagg.advertise_host
    url = f"http://{f'[{host}]' if ':' in host else host}:{config.disagg.bootstrap_port}"
    manager = PrefillKVManager(
        link.args, link.engines, link.options, wake=base.channel.wake, bootstrap_url=url
    )
    parts = base.parts(link.pool, cached=config.memory.prefix_cache)
    scheduler = PrefillScheduler(**parts, **link.parts(manager))
    ready = msgspec.structs.replace(
        base.ready(link.transports), max_request_tokens=base.geometry.context_length
    )
    return Assembly(
        scheduler=scheduler,
        ready=ready,
        registered=lambda: manager.registered,
        close=manager.close,
    )


def _decode(config: WorkerConfig, base: _Base) -> Assembly:
    assert isinstance(base.rows, DecodeReqToTokenPool)
    link = _Link(config, base, num_slots=base.rows.pre_alloc_size)
    manager = DecodeKVManager(link.args, link.engines, link.options, wake=base.channel.wake)
    parts = base.parts(link.pool, cached=False)
    return Assembly(
        scheduler=DecodeScheduler(**parts, **link.parts(manager), rows=base.rows),
        ready=base.ready(link.transports),
        registered=lambda: True,
        close=manager.close,
    )


class _Link:
    """What a disaggregated role has besides: engines, and pools in memory that they can reach."""

    def __init__(self, config: WorkerConfig, base: _Base, num_slots: int) -> None:
        disagg, layout = config.disagg, base.layout
        on_host = base.model.device.type == "cpu"
        backend = BackendOptions(host=disagg.advertise_host, disagg=disagg)
        self.engines = make_engines(backend, on_host=on_host)
        shm = next((each for each in self.engines if isinstance(each, ShmEngine)), None)
        # decode's memory is what a peer maps; prefill's is only read by its own process
        if shm and config.role == "decode":
            kv_memory: memoryview | None = shm.allocate(layout.nbytes)
            slot_memory = shm.allocate(num_slots * SLOT.itemsize)
        else:
            kv_memory, slot_memory = None, memoryview(bytearray(num_slots * SLOT.itemsize))
        self.pool = KVPool(layout, device=base.model.device, buffer=kv_memory)
        self.metadata = MetadataBuffers(slot_memory, num_slots)
        self.checksum: Checksum = crc32_checksum(self.pool) if disagg.kv_checksum else no_checksum
        self.options = LinkOptions(
            host=disagg.advertise_host,
            incarnation=base.incarnation,
            bootstrap_timeout_s=disagg.bootstrap_timeout_s,
            transfer_timeout_s=disagg.transfer_timeout_s,
            lease_ttl_s=disagg.lease_ttl_s,
            secret=shared_secret(),
        )
        self.args = KVArgs(
            kv_ptr=self.pool.data_ptr,
            kv_nbytes=self.pool.nbytes,
            page_nbytes=self.pool.page_nbytes,
            num_pages=self.pool.num_pages,
            meta_ptr=self.metadata.ptr,
            meta_slot_nbytes=SLOT.itemsize,
            num_meta_slots=num_slots,
            meta_layout=LAYOUT,
            page_size=layout.page_size,
            kv_dtype=layout.dtype,
            num_layers=layout.num_layers,
            num_kv_heads=layout.num_kv_heads,
            head_dim=layout.head_dim,
            kv_checksum=disagg.kv_checksum,
            pairing_key=base.pairing_key,
            model=base.geometry.fingerprint,
        )

    @property
    def transports(self) -> list[str]:
        """Names of the engines that run here, preferred first."""
        return [engine.name for engine in self.engines]

    def parts(self, manager: BaseKVManager) -> dict[str, Any]:
        """Arguments that both mixins take."""
        return {
            "manager": manager,
            "metadata": self.metadata,
            "group": SoloGroup(),
            "checksum": self.checksum,
        }


def _rows(config: WorkerConfig, geometry: ModelGeometry) -> ReqToTokenPool:
    size = config.scheduler.max_running_requests
    page_size = config.memory.page_size
    max_context = pages_for(geometry.context_length, page_size) * page_size
    role: Role = config.role
    if role == "decode":
        return DecodeReqToTokenPool(size, config.disagg.pre_alloc_size or size, max_context)
    # a prefill request keeps its row until decode has its KV
    return ReqToTokenPool(size * 2 if role == "prefill" else size, max_context)


def pairing_key(geometry: ModelGeometry, layout: KVLayout, kv_checksum: bool) -> str:
    """Hash of everything that two workers must have in common to exchange KV."""
    facts = (
        PROTOCOL_VERSION,
        KV_LAYOUT,
        LAYOUT,
        kv_checksum,
        geometry.fingerprint,
        geometry.model_type,
        layout.shape[1:],
        layout.dtype,
    )
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]

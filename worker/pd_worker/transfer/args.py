"""What two workers tell each other about themselves: memory regions, geometry, addresses.

All of it is fixed for the life of a process. `KVArgs` describes one rank's two regions:

    KV      num_pages * page_nbytes; one page holds page_size tokens of all layers (page-major), so
            page i is the block kv_ptr + i * page_nbytes
    meta    num_meta_slots * meta_slot_nbytes; the first 8 bytes of a slot are the room (uint64,
            little-endian), written last; what follows is the scheduler's own business
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

PROTOCOL_VERSION = 1
KV_LAYOUT = "page-major/1"
ROOM_NBYTES = 8

Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Word = Annotated[str, msgspec.Meta(max_length=256)]
Rank = Annotated[int, msgspec.Meta(ge=0, le=4095)]
Size = Annotated[int, msgspec.Meta(ge=1, le=4096)]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVArgs:
    """Memory and geometry of one rank; raises ValueError where they contradict each other."""

    kv_ptr: int
    kv_nbytes: int
    page_nbytes: int
    num_pages: int
    meta_ptr: int
    meta_slot_nbytes: int
    num_meta_slots: int
    meta_layout: Word
    """Version or hash of the metadata slot's layout."""
    page_size: int
    """Tokens in a page."""
    kv_dtype: Word
    num_layers: int
    num_kv_heads: int
    head_dim: int
    pairing_key: Word
    """Hash of everything that must be equal on both sides (model, revision, geometry, …)."""
    model: Word = ""
    """Fingerprint of config and weights; in the pairing key too, here to be named by itself."""
    kv_layout: Word = KV_LAYOUT
    kv_checksum: bool = False
    tp_rank: Rank = 0
    tp_size: Size = 1
    pp_rank: Rank = 0
    pp_size: Size = 1
    dp_rank: Rank = 0
    dp_size: Size = 1

    def __post_init__(self) -> None:
        for start, nbytes, count, each in (
            (self.kv_ptr, self.kv_nbytes, self.num_pages, self.page_nbytes),
            (self.meta_ptr, self.meta_nbytes, self.num_meta_slots, self.meta_slot_nbytes),
        ):
            if start <= 0 or count < 1 or each < 1 or start + nbytes > 2**63:
                raise ValueError("a region is empty or outside the address space")
            if count * each > nbytes:
                raise ValueError("a region is smaller than its pages or slots")
        if self.meta_slot_nbytes <= ROOM_NBYTES:
            raise ValueError("a metadata slot must be longer than the room number")

    @property
    def meta_nbytes(self) -> int:
        """Size of the metadata region."""
        return self.num_meta_slots * self.meta_slot_nbytes


MUST_AGREE = (
    "kv_layout",
    "page_size",
    "kv_dtype",
    "num_layers",
    "num_kv_heads",
    "head_dim",
    "page_nbytes",
    "kv_checksum",
    "meta_layout",
    "meta_slot_nbytes",
    "tp_size",
    "pp_size",
    "model",
    "pairing_key",
)
"""Settings that must be equal on both sides; the pairing key last, since it tells least."""


def mismatch(prefill: KVArgs, decode: KVArgs) -> str:
    """The first setting on which two ranks disagree, in words; empty where they can pair."""
    for name in MUST_AGREE:
        ours, theirs = getattr(prefill, name), getattr(decode, name)
        if ours != theirs:
            return f"{name} differs: prefill has {ours!r}, decode has {theirs!r}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """How a KV manager talks to its peers."""

    host: str
    """Address at which peers reach this process; the control socket binds it and nothing else."""
    incarnation: str
    """uuid4 hex of this process: state about a peer is dropped when the peer's changes."""
    bootstrap_timeout_s: float = 120.0
    """Prefill: longest wait for decode's pages. Decode: longest wait for prefill's registration."""
    transfer_timeout_s: float = 300.0
    """Decode: from publishing pages to the last byte. Prefill: from the first chunk to the last."""
    lease_ttl_s: float = 15.0
    """Prefill: how long its registration lives unless it is renewed."""
    secret: str = field(default="", repr=False)
    """Shared secret of the deployment; empty: no authentication."""


class RankAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /route for one rank: its control socket."""

    rank_ip: Word
    rank_port: Port
    incarnation: Word


class PrefillServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of GET /route with the sentinel -1: the whole prefill instance."""

    tp_size: int
    cp_size: int
    dp_size: int
    pp_size: int
    page_size: int
    kv_cache_dtype: str
    kv_layout: str
    pairing_key: str
    protocol_version: int
    incarnations: list[str]
    """Of all ranks, sorted."""
    has_secret: bool = False
    """The instance asks for the deployment's secret; a worker that has one must not go on alone."""


class Route(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of PUT /route: one prefill rank."""

    rank_ip: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    rank_port: Port
    incarnation: Annotated[str, msgspec.Meta(min_length=8, max_length=64)]
    protocol_version: int
    page_size: Annotated[int, msgspec.Meta(ge=1)]
    kv_cache_dtype: Word
    kv_layout: Word
    pairing_key: Word
    lease_ttl_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    """How long the row lives unless it is renewed."""
    tp_rank: Rank = 0
    tp_size: Size = 1
    cp_rank: Rank = 0
    cp_size: Size = 1
    dp_rank: Rank = 0
    dp_size: Size = 1
    pp_rank: Rank = 0
    pp_size: Size = 1

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """dp, cp, tp, pp: the key of the row."""
        return (self.dp_rank, self.cp_rank, self.tp_rank, self.pp_rank)

"""MetadataBuffers: what prefill tells decode about a request besides its KV.

One fixed-size slot per request. Prefill fills its own copy (set_buf) and the transfer engine writes
it into the slot that decode chose, the room last; decode reads it (get_buf) once the transfer is
reported done. A slot whose room is 0 is not written; slots are cleared when they are freed.

    slot: | room u64 | checksum u64 | token i32 | cached i32 | num_top i32 | has_checksum u32 |
          | logprob f32 | pad f32 | top ids i32[128] | top logprobs f32[128] |

Scheduler thread only; the memory is given (shared or registered with a transfer engine).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pd_worker.core.sampling_params import MAX_TOP_LOGPROBS
from pd_worker.errors import IntegrityError, TransferError
from pd_worker.messages import TopLogprobs

SLOT = np.dtype(
    [
        ("room", "<u8"),
        ("checksum", "<u8"),
        ("token", "<i4"),
        ("cached_tokens", "<i4"),
        ("num_top", "<i4"),
        ("has_checksum", "<u4"),
        ("logprob", "<f4"),
        ("_pad", "<f4"),
        ("top_ids", "<i4", (MAX_TOP_LOGPROBS,)),
        ("top_logprobs", "<f4", (MAX_TOP_LOGPROBS,)),
    ]
)
LAYOUT = f"pdserve-metadata-1:{SLOT.itemsize}"
"""Version and size of a slot; both sides of a pair must have the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken:
    """The token that prefill sampled, and its scores."""

    token: int
    cached_tokens: int
    logprob: float
    """NaN where it was not asked for."""
    top: TopLogprobs
    checksum: int | None = None
    """Of the request's KV pages, where both sides keep one."""


class MetadataBuffers:
    """All slots of one worker, over `memory` of at least num_slots * SLOT.itemsize bytes."""

    def __init__(self, memory: memoryview, num_slots: int) -> None:
        self._slots = np.frombuffer(memory, SLOT, count=num_slots)
        self._slots["room"] = 0

    @property
    def ptr(self) -> int:
        """Address of slot 0."""
        return int(self._slots.ctypes.data)

    @property
    def num_slots(self) -> int:
        """How many slots there are."""
        return len(self._slots)

    def set_buf(self, index: int, room: int, first: FirstToken) -> None:
        """Fill a slot on prefill."""
        slot = self._slots[index]
        top = first.top[:MAX_TOP_LOGPROBS]
        slot["room"] = room
        slot["token"], slot["cached_tokens"] = first.token, first.cached_tokens
        slot["logprob"], slot["num_top"] = first.logprob, len(top)
        slot["has_checksum"] = first.checksum is not None
        slot["checksum"] = first.checksum or 0
        slot["top_ids"][: len(top)] = [token for token, _ in top]
        slot["top_logprobs"][: len(top)] = [logprob for _, logprob in top]

    def get_buf(self, index: int, room: int) -> FirstToken:
        """Read a slot on decode; raises TransferError where it is not this room's."""
        slot = self._slots[index]
        if int(slot["room"]) != room:
            raise TransferError(
                f"metadata slot {index} holds room {int(slot['room'])} instead of {room}"
            )
        count = min(max(int(slot["num_top"]), 0), MAX_TOP_LOGPROBS)
        return FirstToken(
            token=int(slot["token"]),
            cached_tokens=int(slot["cached_tokens"]),
            logprob=float(slot["logprob"]),
            top=[
                (int(token), float(logprob))
                for token, logprob in zip(
                    slot["top_ids"][:count], slot["top_logprobs"][:count], strict=True
                )
            ],
            checksum=int(slot["checksum"]) if slot["has_checksum"] else None,
        )

    def clear(self, index: int) -> None:
        """Mark a slot as not written."""
        self._slots[index]["room"] = 0


class ReqToMetadataIdxAllocator:
    """Hands out slots of one MetadataBuffers and clears them when they come back."""

    def __init__(self, buffers: MetadataBuffers) -> None:
        self._buffers = buffers
        self._free = list(range(buffers.num_slots - 1, -1, -1))

    def __repr__(self) -> str:
        return f"ReqToMetadataIdxAllocator(free={self.available} of {self._buffers.num_slots})"

    @property
    def available(self) -> int:
        """Free slots."""
        return len(self._free)

    def alloc(self) -> int | None:
        """A slot, or None while all are taken."""
        return self._free.pop() if self._free else None

    def free(self, index: int) -> None:
        """Give a slot back; raises IntegrityError where it is free already."""
        if index in self._free:
            raise IntegrityError(f"metadata slot {index} was freed twice")
        self._buffers.clear(index)
        self._free.append(index)

    def check_integrity(self, held: int) -> None:
        """Raise IntegrityError unless all slots but `held` are free."""
        if self.available + held != self._buffers.num_slots:
            raise IntegrityError(f"{self!r}, but {held} are held")

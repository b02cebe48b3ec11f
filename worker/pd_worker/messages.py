"""Messages between a worker's API process and its scheduler process (msgpack over ZMQ ipc).

The API sends `ToScheduler`, the scheduler answers `FromScheduler`. Both are tagged unions that are
encoded and decoded here and nowhere else. Token ids travel as lists: they are small beside the
forward they cause.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from pd_worker.core.sampling_params import SamplingParams

TopLogprobs = list[tuple[int, float]]
"""Token id and log-probability, most probable first."""

FinishReason = Literal["stop", "length", "abort", "error"]


class Bootstrap(msgspec.Struct, frozen=True):
    """Where the two legs of one request meet; drawn by the router, equal on both legs."""

    host: str
    """Host name or address of the prefill worker's BootstrapServer."""
    port: int
    room: int
    """1 … 2**63-1; 0 means "metadata slot not written" and is never a room."""


class GenerateRequest(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One sample of one prompt, tokenised and validated."""

    rid: str
    """Unique in this worker for as long as the request lives."""
    input_ids: list[int]
    sampling: SamplingParams
    num_logprobs: int = -1
    """-1: none; 0: the chosen token's; n: also the n most probable."""
    prompt_logprobs: bool = False
    """Log-probabilities of the prompt tokens as well (switches the prefix cache off for it)."""
    bootstrap: Bootstrap | None = None
    extra_key: str = ""
    """Whatever else decides the KV (tenant, adapter): part of the prefix-cache key."""


class AbortRequest(msgspec.Struct, frozen=True, tag=True):
    """End this request wherever it is; exact match. Unknown ids are ignored."""

    rid: str
    reason: str = "aborted by the client"


class RejectRoom(msgspec.Struct, frozen=True, tag=True):
    """The API refused a leg before it became a request: tell the other side of the room."""

    bootstrap: Bootstrap
    reason: str


class FlushCache(msgspec.Struct, frozen=True, tag=True):
    """Drop every prefix-cache entry that no request holds."""


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Leave the event loop, close the transfer engine, unregister, exit 0."""


ToScheduler = GenerateRequest | AbortRequest | RejectRoom | FlushCache | Shutdown


class Finish(msgspec.Struct, frozen=True):
    """Why a request ended. `status` is the HTTP status where reason is abort or error."""

    reason: FinishReason
    matched: int | None = None
    """The stop token id that was hit; None for stop strings and the rest."""
    status: int = 200
    message: str = ""
    code: str = ""


class Stage(msgspec.Struct, frozen=True):
    """One stretch of a request's life on this worker, for the timeline."""

    name: str
    """queue | bootstrap | prefill | transfer | prealloc | decode."""
    start: float
    """Unix time, seconds."""
    end: float
    detail: str = ""


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """What is new of one request. Exactly one Output of a request has `finish` set, its last."""

    rid: str
    token_ids: list[int] = []
    logprobs: list[float] = []
    """One for each of token_ids where num_logprobs >= 0, else empty."""
    top_logprobs: list[TopLogprobs] = []
    finish: Finish | None = None
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache (prefill's number on decode)."""
    prompt_logprobs: list[float | None] = []
    """In the first Output only: one for each prompt token, the first is None."""
    prompt_top_logprobs: list[TopLogprobs] = []
    stages: list[Stage] = []
    """In the last Output only."""


class OutputBatch(msgspec.Struct, frozen=True, tag=True):
    outputs: list[Output]


class SchedulerReady(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The model is loaded, memory is registered, the transfer engine is up."""

    max_total_tokens: int
    max_request_tokens: int
    """Longest prompt + output that can ever fit."""
    page_size: int
    vocab_size: int
    pairing_key: str
    kv_transports: list[str]
    facts: dict[str, Any] = {}
    """More for /server_info: dtype, device, layers, …"""


class LoadProgress(msgspec.Struct, frozen=True, tag=True):
    """How far loading is; `fraction` 0 … 1."""

    fraction: float
    what: str


class Heartbeat(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Once a second from a thread of its own, so that a long forward does not look dead."""

    loop_age_s: float
    """Seconds since the event loop last came round (an idle loop comes round as well)."""
    problem: str = ""
    """Empty while every helper thread lives; else the reason why /health must be red."""
    registered: bool = True
    """Prefill: the registration was read back from the BootstrapServer."""
    gauges: dict[str, float] = {}
    """Current values by metric name without prefix; see scheduler.gauges()."""
    counters: dict[str, float] = {}
    """Running totals by metric name without prefix."""


class SchedulerFailed(msgspec.Struct, frozen=True, tag=True):
    """The scheduler cannot start or go on; `message` is for the user. The process exits next."""

    message: str


FromScheduler = OutputBatch | SchedulerReady | LoadProgress | Heartbeat | SchedulerFailed

_encoder = msgspec.msgpack.Encoder()
_to_scheduler: msgspec.msgpack.Decoder[ToScheduler] = msgspec.msgpack.Decoder(ToScheduler)
_from_scheduler: msgspec.msgpack.Decoder[FromScheduler] = msgspec.msgpack.Decoder(FromScheduler)


def encode(message: ToScheduler | FromScheduler) -> bytes:
    """The message as msgpack."""
    return _encoder.encode(message)


def decode_to_scheduler(data: bytes) -> ToScheduler:
    """The inverse of encode in the scheduler; raises msgspec.MsgspecError on other bytes."""
    return _to_scheduler.decode(data)


def decode_from_scheduler(data: bytes) -> FromScheduler:
    """The inverse of encode in the API process; raises msgspec.MsgspecError on other bytes."""
    return _from_scheduler.decode(data)

"""Every message between a prefill and a decode worker, and the only place that encodes them.

    decode → prefill   Register      TransferInfo   Abort      Ping
    prefill → decode   RegisterAck   Status         AbortAck   Pong

One message is one ZMQ frame of msgpack, tagged by type. Delivery is at least once: decode repeats
Register, TransferInfo and Abort until they are answered, and prefill answers repetitions. `sender`
is the incarnation of the process that sent the message.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from pd_worker.errors import WireError
from pd_worker.transfer.args import KVArgs, Port, Word

MAX_FRAME_NBYTES = 8 << 20
"""Room for two million page indices; a longer frame is refused before it is read."""

Pages = npt.NDArray[np.int32]
Room = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Reason = Annotated[str, msgspec.Meta(max_length=2048)]
Index = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
SessionId = Annotated[str, msgspec.Meta(max_length=64 << 10)]
"""An engine's own; some hold every address and key of theirs."""


class Register(msgspec.Struct, frozen=True, tag="Register", kw_only=True):
    """Decode introduces itself: where its memory is and where it listens."""

    version: int
    sender: Word
    target: Word
    """Incarnation that decode believes to talk to."""
    host: Word
    port: Port
    kv: KVArgs
    sessions: Annotated[dict[Word, SessionId], msgspec.Meta(max_length=16)]
    """Session id by engine name: through which engines decode can be written to."""

    def __post_init__(self) -> None:
        ipaddress.ip_address(self.host)  # a name would be looked up, for whoever sent it


class RegisterAck(msgspec.Struct, frozen=True, tag="RegisterAck", kw_only=True):
    """Prefill's answer: the engine that it will use, or the reason why the two cannot pair."""

    sender: Word
    engine: Word = ""
    session: SessionId = ""
    """Session id of prefill's engine, by which decode can tell whether the writer still lives."""
    refusal: Reason = ""


class TransferInfo(msgspec.Struct, frozen=True, tag="TransferInfo", kw_only=True):
    """Where one request's KV goes."""

    sender: Word
    room: Room
    pages: bytes
    """int32, little-endian: decode's pages in the order of the request's tokens."""
    aux_index: Index
    """Metadata slot."""
    decode_prefix_len: Index = 0
    """Leading tokens that decode already has; `pages` starts behind them."""


class Status(msgspec.Struct, frozen=True, tag="Status", kw_only=True):
    """A room ended on prefill: Success or Failed."""

    sender: Word
    room: Room
    state: Annotated[int, msgspec.Meta(ge=0, le=4)]
    reason: Reason = ""


class Abort(msgspec.Struct, frozen=True, tag="Abort", kw_only=True):
    """The room is over on decode; stop writing and answer AbortAck."""

    sender: Word
    room: Room
    reason: Reason


class AbortAck(msgspec.Struct, frozen=True, tag="AbortAck", kw_only=True):
    """No thread of prefill touches the room's pages any more, nor will one."""

    sender: Word
    room: Room
    clean: bool = True
    """False: a write broke off, so bytes already on the network may still arrive."""


class Ping(msgspec.Struct, frozen=True, tag="Ping", kw_only=True):
    """Decode asks a prefill with live rooms whether it lives."""

    sender: Word


class Pong(msgspec.Struct, frozen=True, tag="Pong", kw_only=True):
    """It does."""

    sender: Word


Message = Register | RegisterAck | TransferInfo | Status | Abort | AbortAck | Ping | Pong

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """The message as one frame."""
    return _encoder.encode(message)


def decode(frames: Sequence[bytes]) -> Message:
    """The inverse of encode; raises WireError on anything else."""
    if len(frames) != 1:
        raise WireError(f"{len(frames)} frames in one message")
    if len(frames[0]) > MAX_FRAME_NBYTES:
        raise WireError(f"a frame of {len(frames[0])} bytes")
    try:
        return _decoder.decode(frames[0])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise WireError(f"not a message: {error}") from error


def pack_pages(pages: Pages) -> bytes:
    """Page indices as bytes of a TransferInfo."""
    return np.ascontiguousarray(pages, dtype="<i4").tobytes()


def unpack_pages(data: bytes, num_pages: int) -> Pages:
    """The inverse; raises WireError unless all are distinct and below `num_pages`."""
    if len(data) % 4:
        raise WireError(f"{len(data)} bytes are no page indices")
    pages = np.frombuffer(data, dtype="<i4").astype(np.int32)
    if pages.size and not (pages.min() >= 0 and pages.max() < num_pages):
        raise WireError(f"a page index is outside 0 … {num_pages - 1}")
    if np.unique(pages).size != pages.size:
        raise WireError("a page index appears twice")
    return pages

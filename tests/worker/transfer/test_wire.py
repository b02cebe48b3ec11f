"""Messages survive the wire; nothing else does."""

from __future__ import annotations

import os
import random

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_worker.errors import WireError
from pd_worker.transfer import wire
from pd_worker.transfer.args import mismatch
from tests.worker.transfer.harness import Pool

ARGS = Pool.private().args()
MESSAGES = [
    wire.Register(
        version=1, sender="a", target="b", host="::1", port=1, kv=ARGS, sessions={"shm": "x"}
    ),
    wire.RegisterAck(sender="a", engine="shm", session="y"),
    wire.RegisterAck(sender="a", refusal="page_size differs"),
    wire.TransferInfo(sender="a", room=2**63 - 1, pages=b"\0" * 8, aux_index=3),
    wire.Status(sender="a", room=1, state=0, reason="ü"),
    wire.Abort(sender="a", room=1, reason="why"),
    wire.AbortAck(sender="a", room=1, clean=False),
    wire.Ping(sender="a"),
    wire.Pong(sender="a"),
    wire.RegisterAck(sender="a", engine="nixl", session="metadata" * 200),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message: wire.Message) -> None:
    assert wire.decode([wire.encode(message)]) == message


def changed(**fields: object) -> bytes:
    """A TransferInfo with other fields."""
    good = msgspec.msgpack.decode(wire.encode(MESSAGES[3]))
    return msgspec.msgpack.encode({**good, **fields})


BAD = {
    "no frame": [],
    "empty": [b""],
    "two frames": [wire.encode(MESSAGES[7])] * 2,
    "fifty frames": [b"x"] * 50,
    "not utf-8": [b"\xa3\xff\xfe\xfd"],
    "unknown tag": [msgspec.msgpack.encode({"type": "Exec", "sender": "a"})],
    "no tag": [msgspec.msgpack.encode({"sender": "a"})],
    "sixteen MiB": [b"\0" * (16 << 20)],
    "deep nesting": [b"\x91" * 200_000],
    "room zero": [changed(room=0)],
    "room too large": [changed(room=2**63)],
    "room negative": [changed(room=-1)],
    "room as text": [changed(room="1")],
    "slot negative": [changed(aux_index=-1)],
    "pickle": [b"cos\nsystem\n(S'true'\ntR."],
    "no field": [msgspec.msgpack.encode({"type": "Abort", "sender": "a"})],
}


@pytest.mark.parametrize("frames", BAD.values(), ids=BAD.keys())
def test_other_bytes_are_a_wire_error(frames: list[bytes]) -> None:
    with pytest.raises(WireError):
        wire.decode(frames)


@pytest.mark.parametrize(
    "change",
    [
        {"kv_ptr": 0},
        {"kv_ptr": 2**63},
        {"num_pages": 2**40},
        {"page_nbytes": 0},
        {"meta_slot_nbytes": 8},
        {"num_meta_slots": 0},
        {"num_pages": -1},
    ],
    ids=str,
)
def test_forged_regions_are_a_wire_error(change: dict[str, int]) -> None:
    hello = msgspec.msgpack.decode(wire.encode(MESSAGES[0]))
    hello["kv"].update(change)
    with pytest.raises(WireError):
        wire.decode([msgspec.msgpack.encode(hello)])


def test_random_damage_is_survived() -> None:
    rng = random.Random(1)
    for n in range(3000):
        frame = bytearray(wire.encode(MESSAGES[n % len(MESSAGES)]))
        for _ in range(rng.randint(1, 4)):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        try:
            wire.decode([bytes(frame)])
        except WireError:
            continue


def test_random_bytes_are_survived() -> None:
    for length in range(200):
        with pytest.raises(WireError):
            wire.decode([b"\xc1" + os.urandom(length)])


@given(pages=st.lists(st.integers(0, 999), unique=True, max_size=50))
def test_pages_round_trip(pages: list[int]) -> None:
    packed = wire.pack_pages(np.array(pages, dtype=np.int32))
    assert wire.unpack_pages(packed, 1000).tolist() == pages


@pytest.mark.parametrize(
    "pages", [[64], [-1], [3, 3], [2**31 - 1]], ids=["behind", "negative", "twice", "huge"]
)
def test_bad_pages_are_a_wire_error(pages: list[int]) -> None:
    with pytest.raises(WireError):
        wire.unpack_pages(np.array(pages, dtype="<i4").tobytes(), 64)


def test_torn_pages_are_a_wire_error() -> None:
    with pytest.raises(WireError):
        wire.unpack_pages(b"\0" * 7, 64)


def test_equal_args_pair() -> None:
    assert mismatch(ARGS, ARGS) == ""

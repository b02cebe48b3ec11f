"""Bad bytes, forged messages, settings that do not fit, rooms used twice."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from pd_worker.errors import InvalidRequest
from pd_worker.transfer import wire
from pd_worker.transfer.keys import curve_pair
from pd_worker.transfer.poll import KVPoll
from tests.worker.transfer.conftest import Factory
from tests.worker.transfer.harness import (
    CANARY,
    Decode,
    Prefill,
    indices,
    options,
    receive,
    transfer,
    until,
    until_state,
)
from tests.worker.transfer.test_wire import ARGS, BAD

Send = Callable[[Prefill | Decode, list[bytes]], None]


@pytest.fixture
def send_raw() -> Any:
    """Send frames to a worker's control socket, as a stranger."""
    context = zmq.Context()

    def send(worker: Prefill | Decode, frames: list[bytes], secret: str = "") -> None:
        with context.socket(zmq.PUSH) as socket:
            pair = curve_pair(secret)
            if pair is not None:
                socket.curve_serverkey = socket.curve_publickey = pair.public
                socket.curve_secretkey = pair.private
            socket.connect(f"tcp://{worker.manager.endpoint}")
            socket.send_multipart(frames)
            socket.setsockopt(zmq.LINGER, 2000)

    yield send
    context.destroy(linger=2000)


def bad_messages(worker: Prefill | Decode) -> float:
    return worker.manager.counters().get("kv_bad_messages", 0.0)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_no_bytes_stop_a_worker(role: str, prefill: Prefill, decode: Decode, send_raw: Any) -> None:
    worker: Prefill | Decode = prefill if role == "prefill" else decode
    counted = [frames for name, frames in BAD.items() if frames and name != "sixteen MiB"]
    for frames in BAD.values():
        if frames:
            send_raw(worker, frames)
    until(lambda: bad_messages(worker) == len(counted), 5.0)
    assert worker.manager.problem() == ""
    transfer(prefill, decode, 1)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_every_message_of_a_stranger_is_harmless(
    role: str, prefill: Prefill, decode: Decode, send_raw: Any
) -> None:
    worker: Prefill | Decode = prefill if role == "prefill" else decode
    transfer(prefill, decode, 1)
    receiver = receive(decode, prefill, 2, (5,), 1)
    for message in (
        wire.TransferInfo(sender="stranger", room=2, pages=b"\0" * 4, aux_index=0),
        wire.Status(sender="stranger", room=2, state=4),
        wire.Status(sender="stranger", room=2, state=0, reason="gotcha"),
        wire.AbortAck(sender="stranger", room=2),
        wire.RegisterAck(sender="stranger", refusal="gotcha"),
        wire.Ping(sender="stranger"),
        wire.Pong(sender="stranger"),
    ):
        send_raw(worker, [wire.encode(message)])
    transfer(prefill, decode, 3, dst=(20, 21, 22))
    assert receiver.poll() == KVPoll.Transferring
    assert not receiver.drained


@pytest.mark.parametrize(
    "pages", [[64], [-1], [5, 5]], ids=["outside the pool", "negative", "twice"]
)
def test_bad_pages_fail_the_room_on_both_sides(
    pages: list[int], prefill: Prefill, decode: Decode, send_raw: Any
) -> None:
    transfer(prefill, decode, 1)
    sender = prefill.manager.create_sender(2)
    forged = wire.TransferInfo(
        sender=decode.link.incarnation,
        room=2,
        pages=np.array(pages, dtype="<i4").tobytes(),
        aux_index=0,
    )
    send_raw(prefill, [wire.encode(forged)])
    until(lambda: sender.poll() == KVPoll.Failed)
    assert "bad TransferInfo" in sender.failure()
    transfer(prefill, decode, 3)


def test_registration_of_memory_that_is_not_the_peers_writes_nowhere(
    prefill: Prefill, decode: Decode, send_raw: Any
) -> None:
    """A peer names another worker's session but addresses that it did not open."""
    session = decode.manager.engines["shm"].session_id
    forged = wire.Register(
        version=1,
        sender="f" * 32,
        target=prefill.link.incarnation,
        host="127.0.0.1",
        port=1,
        kv=msgspec.structs.replace(_hello(prefill), kv=ARGS).kv,
        sessions={"shm": session},
    )
    send_raw(prefill, [wire.encode(forged)])
    info = wire.TransferInfo(
        sender="f" * 32, room=9, pages=np.array([3], dtype="<i4").tobytes(), aux_index=0
    )
    until(lambda: prefill.manager.gauges()["kv_sessions"] == 1)
    sender = prefill.manager.create_sender(9)
    send_raw(prefill, [wire.encode(info)])
    until_state(sender, KVPoll.WaitingForInput)
    sender.init(1, 0)
    sender.send(indices(1), num_kv_tokens=16)
    until(lambda: sender.poll() == KVPoll.Failed)
    assert (decode.pool.kv == CANARY).all()


def _hello(prefill: Prefill) -> wire.Register:
    return wire.Register(
        version=1,
        sender="e" * 32,
        target=prefill.link.incarnation,
        host="127.0.0.1",
        port=1,
        kv=ARGS,
        sessions={},
    )


@pytest.mark.parametrize("host", ["evil.example", "", "0"])
def test_a_registration_must_name_a_numeric_address(
    host: str, prefill: Prefill, send_raw: Any
) -> None:
    hello = msgspec.msgpack.decode(wire.encode(_hello(prefill)))
    send_raw(prefill, [msgspec.msgpack.encode({**hello, "host": host})])
    until(lambda: bad_messages(prefill) == 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("page_size", 64),
        ("kv_dtype", "bfloat16"),
        ("num_layers", 2),
        ("num_kv_heads", 2),
        ("head_dim", 4),
        ("kv_layout", "layer-major/1"),
        ("kv_checksum", True),
        ("meta_layout", "meta/2"),
        ("meta_slot_nbytes", 32),
        ("tp_size", 2),
        ("model", "other"),
        ("pairing_key", "other"),
    ],
)
def test_a_setting_that_differs_is_named_at_once(
    name: str, value: Any, prefill: Prefill, decode: Decode, start_decode: Factory
) -> None:
    other = start_decode(changes={name: value})
    sender = prefill.manager.create_sender(1)
    receiver = other.manager.create_receiver("127.0.0.1", prefill.port, 1)
    receiver.init()
    for end in (receiver, sender):
        until(lambda end=end: end.poll() == KVPoll.Failed, 3.0)
        assert f"{name} differs" in end.failure()
    assert receiver.drained
    transfer(prefill, decode, 2)


@pytest.mark.parametrize("sides", [("shm", "mooncake"), ("mooncake", "shm"), ("fake", "shm")])
def test_no_engine_in_common_is_named_at_once(
    sides: tuple[str, str], start_prefill: Factory, start_decode: Factory
) -> None:
    prefill, decode = start_prefill(kind=sides[0]), start_decode(kind=sides[1])
    receiver = decode.manager.create_receiver("127.0.0.1", prefill.port, 1)
    receiver.init()
    until(lambda: receiver.poll() == KVPoll.Failed, 3.0)
    assert "no transfer engine in common" in receiver.failure()


@pytest.mark.parametrize(
    ("ours", "theirs"), [("a", "b"), ("a", ""), ("", "b")], ids=["wrong", "none", "needless"]
)
def test_unequal_secrets_do_not_pair(
    ours: str, theirs: str, start_prefill: Factory, start_decode: Factory
) -> None:
    prefill = start_prefill(link=options(secret=ours))
    decode = start_decode(link=options(secret=theirs))
    receiver = decode.manager.create_receiver("127.0.0.1", prefill.port, 1)
    receiver.init()
    until(lambda: receiver.poll() == KVPoll.Failed, 5.0)
    assert "secrets differ" in receiver.failure()
    friend = start_decode(link=options(secret=ours))
    transfer(prefill, friend, 2)


@pytest.mark.parametrize("secret", ["", "wrong"], ids=["none", "wrong"])
def test_messages_without_the_secret_are_not_even_read(
    secret: str, start_prefill: Factory, start_decode: Factory, send_raw: Any
) -> None:
    prefill, decode = (start(link=options(secret="s")) for start in (start_prefill, start_decode))
    send_raw(prefill, [os.urandom(64)], secret)
    transfer(prefill, decode, 1)
    assert bad_messages(prefill) == 0


def test_concurrent_requests_with_one_room_leave_exactly_one(
    prefill: Prefill, decode: Decode
) -> None:
    made: list[Any] = []
    refused: list[InvalidRequest] = []

    def create() -> None:
        try:
            made.append(prefill.manager.create_sender(7))
        except InvalidRequest as error:
            refused.append(error)

    threads = [threading.Thread(target=create) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 49)
    assert all(error.status == 400 and error.param == "bootstrap_room" for error in refused)
    receiver = receive(decode, prefill, 7, (5,), 1)
    with pytest.raises(InvalidRequest):
        decode.manager.create_receiver("127.0.0.1", prefill.port, 7)
    until_state(made[0], KVPoll.WaitingForInput)
    made[0].init(1, 0)
    made[0].send(indices(1), num_kv_tokens=16)
    until_state(receiver, KVPoll.Success)


def test_a_finished_room_is_not_used_again(prefill: Prefill, decode: Decode) -> None:
    transfer(prefill, decode, 7)
    with pytest.raises(InvalidRequest):
        prefill.manager.create_sender(7)
    with pytest.raises(InvalidRequest):
        decode.manager.create_receiver("127.0.0.1", prefill.port, 7)


def test_a_second_decode_with_the_same_room_is_refused(
    prefill: Prefill, decode: Decode, start_decode: Factory
) -> None:
    sender = prefill.manager.create_sender(7)
    receiver = receive(decode, prefill, 7, (5,), 1)
    until_state(sender, KVPoll.WaitingForInput)
    second = receive(start_decode(), prefill, 7, (9,), 1)
    until(lambda: second.poll() == KVPoll.Failed, 2.0)
    assert "another decode has this room" in second.failure()
    until(lambda: second.drained, 2.0)
    second.clear()
    sender.init(1, 0)
    sender.send(indices(1), num_kv_tokens=16)
    until_state(receiver, KVPoll.Success)


@pytest.mark.parametrize("room", [0, -5, 2**63])
def test_room_numbers_out_of_range_are_refused(room: int, prefill: Prefill, decode: Decode) -> None:
    with pytest.raises(InvalidRequest):
        prefill.manager.create_sender(room)
    with pytest.raises(InvalidRequest):
        decode.manager.create_receiver("127.0.0.1", prefill.port, room)


def test_roles_make_only_their_own_ends(prefill: Prefill, decode: Decode) -> None:
    with pytest.raises(InvalidRequest, match="not a decode worker"):
        prefill.manager.create_receiver("127.0.0.1", prefill.port, 1)
    with pytest.raises(InvalidRequest, match="not a prefill worker"):
        decode.manager.create_sender(1)

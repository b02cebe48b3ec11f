"""Prefill's KV manager. The life of a room here:

    1. `create_sender` opens it. A TransferInfo, an Abort or a refusal that came before is waiting.
    2. Decode's TransferInfo arrives: its pages are checked, the room is WaitingForInput.
    3. The scheduler sends chunks; the session's writer thread copies them into decode's memory.
    4. The last chunk is followed by the metadata slot; decode is told Success.

At any point the room may fail: decode is told Failed at once, and AbortAck when no thread touches
its pages any more. Repeated messages of decode are answered again, also after the room was cleared.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from pd_worker.errors import WireError
from pd_worker.transfer import wire
from pd_worker.transfer.args import PROTOCOL_VERSION, KVArgs, LinkOptions, Route
from pd_worker.transfer.common import CommonKVManager
from pd_worker.transfer.engine import TransferEngine
from pd_worker.transfer.lease import Lease
from pd_worker.transfer.mailbox import Endpoint
from pd_worker.transfer.poll import NAMES, TERMINAL, KVPoll
from pd_worker.transfer.rendezvous import Rendezvous
from pd_worker.transfer.sender import KVSender, Target
from pd_worker.transfer.session import Session
from pd_worker.transfer.sessions import SessionTable

logger = logging.getLogger(__name__)

STRANGER_S = 5.0
STOP_WRITERS_S = 5.0


class PrefillKVManager(CommonKVManager):
    """See BaseKVManager and the module's text."""

    registry_right = "write"

    def __init__(
        self,
        args: KVArgs,
        engines: Sequence[TransferEngine],
        options: LinkOptions,
        *,
        wake: Callable[[], None],
        bootstrap_url: str,
    ) -> None:
        """Register the regions and start. `bootstrap_url`: our BootstrapServer, http://host:port."""
        super().__init__(args, engines, options, wake=wake)
        for engine in self.engines.values():
            if engine.registers_source:
                engine.register(args.kv_ptr, args.kv_nbytes)
                engine.register(args.meta_ptr, args.meta_nbytes)
        self.sessions = SessionTable(args, self.engines, self)
        self._senders: dict[int, KVSender] = {}
        self._rendezvous = Rendezvous(options.bootstrap_timeout_s)
        self._handlers: dict[type, Callable[..., None]] = {
            wire.Register: self._on_register,
            wire.TransferInfo: self._on_transfer_info,
            wire.Abort: self._on_abort,
            wire.Ping: self._on_ping,
        }
        self.control.start(self._on_message, self._on_tick)
        self._lease = Lease(self.control, bootstrap_url, self._route())
        self.control.call(self._lease.start)

    def _route(self) -> Route:
        args = self.args
        return Route(
            rank_ip=self.endpoint.host,
            rank_port=self.endpoint.port,
            incarnation=self.incarnation,
            protocol_version=PROTOCOL_VERSION,
            page_size=args.page_size,
            kv_cache_dtype=args.kv_dtype,
            kv_layout=args.kv_layout,
            pairing_key=args.pairing_key,
            lease_ttl_s=self.options.lease_ttl_s,
            tp_rank=args.tp_rank,
            tp_size=args.tp_size,
            pp_rank=args.pp_rank,
            pp_size=args.pp_size,
            dp_rank=args.dp_rank,
            dp_size=args.dp_size,
        )

    @property
    def registered(self) -> bool:
        """Whether our registration was read back from the BootstrapServer, and not long ago."""
        return self._lease.registered

    def create_sender(self, room: int) -> KVSender:
        self.rooms.open(room)
        sender = KVSender(room, self)
        self.control.call(self._join, sender)
        return sender

    def reject(self, host: str, port: int, room: int, reason: str) -> None:
        """`host` and `port` are our own and not used: decode comes to us."""
        self.control.call(self._reject, room, reason)

    def gauges(self) -> dict[str, float]:
        return {
            "kv_rooms": len(self.rooms),
            "kv_sessions": len(self.sessions),
            "kv_early_transfer_infos": len(self._rendezvous),
            "kv_draining_rooms": sum(s.cleared for s in list(self._senders.values())),
            "kv_writer_threads": sum(s.writing for s in self.sessions),
        }

    def close(self) -> None:
        if self._closed:
            return
        for sender in list(self._senders.values()):
            sender.fail("the prefill worker is shutting down")
        self.control.wait(self._lease.release(), 2.0)
        writers = [session.end() for session in self.sessions]
        until = time.monotonic() + STOP_WRITERS_S
        for writer in writers:
            if writer is not None:
                writer.join(max(0.0, until - time.monotonic()))
        super().close()

    # The rest runs on the control thread.

    def _on_message(self, message: wire.Message) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            raise WireError(f"a prefill worker was sent {type(message).__name__}")
        handler(message)

    def _on_register(self, hello: wire.Register) -> None:
        ack = self.sessions.register(hello)
        peer = Endpoint(hello.host, hello.port)
        self.send(peer, ack)
        if ack.refusal:
            self.control.later(STRANGER_S, self._drop_stranger, peer)

    def _drop_stranger(self, peer: Endpoint) -> None:
        if all(session.endpoint != peer for session in self.sessions):
            self.control.mailbox.drop(peer)

    def _on_ping(self, ping: wire.Ping) -> None:
        session = self.sessions.get(ping.sender)
        if session is not None:
            self._tell(session, wire.Pong(sender=self.incarnation))

    def _on_transfer_info(self, info: wire.TransferInfo) -> None:
        session = self.sessions.get(info.sender)
        if session is None:
            self.tally.add("kv_messages_of_strangers")
            return
        sender = self._senders.get(info.room)
        outcome = self.rooms.outcome(info.room)
        if sender is not None:
            self._match(sender, session, info)
        elif outcome is not None and outcome.state in TERMINAL:
            self._answer(session, info.room, outcome.state, outcome.reason)
        elif reason := self._rendezvous.refusal(info.room):
            self._answer(session, info.room, KVPoll.Failed, reason)
        else:
            for lost in self._rendezvous.publish(info):
                self._miss(lost)

    def _match(self, sender: KVSender, session: Session, info: wire.TransferInfo) -> None:
        """Bring a sender and decode's TransferInfo together, or answer a repeated one."""
        if sender.target is not None:
            if sender.target.session.incarnation != info.sender:
                self._answer(session, info.room, KVPoll.Failed, "another decode has this room")
            elif sender.poll() in TERMINAL:
                self._report(sender)
            return
        try:
            pages = wire.unpack_pages(info.pages, session.hello.kv.num_pages)
            if info.aux_index >= session.hello.kv.num_meta_slots:
                raise WireError(f"there is no metadata slot {info.aux_index}")
        except WireError as error:
            self._answer(session, info.room, KVPoll.Failed, str(error))
            sender.fail(f"decode {session.endpoint} sent a bad TransferInfo: {error}")
            return
        sender.target = Target(session=session, info=info, pages=pages)
        sender.timer.cancel()
        if not self.rooms.update(sender.room, KVPoll.WaitingForInput):
            self._report(sender)

    def _join(self, sender: KVSender) -> None:
        """A new sender: look for what came before it."""
        self._senders[sender.room] = sender
        sender.timer.arm(self.options.bootstrap_timeout_s, partial(self._never_matched, sender))
        info, reason = self._rendezvous.meet(sender.room)
        session = None if info is None else self.sessions.peek(info.sender)
        if info is not None and session is not None:
            self._match(sender, session, info)
        if reason:
            sender.fail(reason)

    def _on_abort(self, abort: wire.Abort) -> None:
        session = self.sessions.get(abort.sender)
        sender = self._senders.get(abort.room)
        if sender is None:
            outcome = self.rooms.outcome(abort.room)
            if outcome is None or outcome.state not in TERMINAL:
                self._rendezvous.abort(abort)
        elif sender.target is None:
            sender.fail(f"decode: {abort.reason}")
        elif sender.target.session.incarnation == abort.sender:
            sender.fail(f"decode: {abort.reason}")
            self.drained(sender)
            return
        if session is not None:
            self._tell(session, wire.AbortAck(sender=self.incarnation, room=abort.room))

    def _reject(self, room: int, reason: str) -> None:
        if self.rooms.outcome(room) is not None:
            return  # the number belongs to another request, which goes on
        info = self._rendezvous.refuse(room, reason)
        session = None if info is None else self.sessions.peek(info.sender)
        if session is not None:
            self._answer(session, room, KVPoll.Failed, self._rendezvous.refusal(room))

    def _answer(self, session: Session, room: int, state: int, reason: str) -> None:
        """Tell decode how a room without a writer ended."""
        status = wire.Status(sender=self.incarnation, room=room, state=state, reason=reason[:1000])
        self._tell(session, status)
        if state == KVPoll.Failed:
            self._tell(session, wire.AbortAck(sender=self.incarnation, room=room))

    def _tell(self, session: Session, message: wire.Message) -> None:
        """Send to the decode process, which may have registered anew."""
        current = self.sessions.peek(session.incarnation)
        if current is not None:
            self.send(current.endpoint, message)

    def _miss(self, info: wire.TransferInfo) -> None:
        """Decode published pages for a request that never came here."""
        session = self.sessions.peek(info.sender)
        if session is not None:
            reason = f"prefill: the request of room {info.room} never arrived there"
            self._answer(session, info.room, KVPoll.Failed, reason)

    def _never_matched(self, sender: KVSender) -> None:
        sender.fail(self._late(sender, "TransferInfo", self.options.bootstrap_timeout_s))

    def _never_done(self, sender: KVSender) -> None:
        sender.fail(self._late(sender, "last write", self.options.transfer_timeout_s))

    def _late(self, sender: KVSender, missing: str, timeout_s: float) -> str:
        peer = "unknown" if sender.target is None else str(sender.target.session.endpoint)
        return (
            f"room={sender.room} state={NAMES[sender.poll()]} decode={peer}: "
            f"no {missing} within {timeout_s:g} s"
        )

    # Called by senders (SenderHost):

    def started(self, sender: KVSender) -> None:
        """Its first chunk is on its way."""
        if sender.poll() not in TERMINAL:
            sender.timer.arm(self.options.transfer_timeout_s, partial(self._never_done, sender))

    def ended(self, sender: KVSender) -> None:
        """Its room is Success or Failed: tell decode."""
        sender.timer.cancel()
        self.tally.add(f"kv_transfers_{NAMES[sender.poll()].lower()}")
        self._report(sender)

    def _report(self, sender: KVSender) -> None:
        outcome = self.rooms.outcome(sender.room)
        if outcome is None or sender.target is None:
            return
        status = wire.Status(
            sender=self.incarnation,
            room=sender.room,
            state=outcome.state,
            reason=outcome.reason and f"prefill: {outcome.reason[:1000]}",
        )
        self._tell(sender.target.session, status)
        self.drained(sender)

    def drained(self, sender: KVSender) -> None:
        """If its room is Failed and nothing touches decode's pages any more: tell decode."""
        if not sender.drained or sender.poll() not in TERMINAL:
            return
        if sender.target is not None and sender.cancelled:
            ack = wire.AbortAck(sender=self.incarnation, room=sender.room, clean=sender.clean)
            self._tell(sender.target.session, ack)
        if sender.cleared:
            self._senders.pop(sender.room, None)

    def forget(self, sender: KVSender) -> None:
        """The scheduler has cleared it; it stays here until it is drained."""
        sender.timer.cancel()
        sender.cleared = True
        if sender.drained:
            self._senders.pop(sender.room, None)

    def _on_tick(self, now: float) -> None:
        for info in self._rendezvous.expire():
            self._miss(info)
        used = {s.target.session for s in self._senders.values() if s.target is not None}
        self.sessions.tick(now, used)

    def ended_session(self, session: Session, reason: str) -> None:
        """A decode process is gone or registered anew: its rooms fail."""
        for sender in list(self._senders.values()):
            if sender.target is not None and sender.target.session is session:
                sender.fail(reason)

"""Decode's KV manager. The life of a room here:

    1. `create_receiver` opens it; `init` looks the prefill up and registers with it, once for each
       pair of processes. Then the room is WaitingForInput.
    2. `send_metadata` publishes pages and slot: Transferring. TransferInfo is repeated while
       nothing comes back.
    3. Prefill writes and says Success, or Failed.

When a room fails after its pages were published they are quarantined: `drained` becomes true when
the writer says that it has stopped, or has certainly ended (watch.py), or has lost its access
(renewal.py).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

from pd_worker.errors import WireError
from pd_worker.transfer import wire
from pd_worker.transfer.args import PROTOCOL_VERSION, KVArgs, LinkOptions, RankAddress
from pd_worker.transfer.common import CommonKVManager
from pd_worker.transfer.engine import TransferEngine
from pd_worker.transfer.links import ACK_TIMEOUT_S, Link, PrefillPeer
from pd_worker.transfer.mailbox import Endpoint
from pd_worker.transfer.poll import NAMES, TERMINAL, KVPoll
from pd_worker.transfer.quarantine import Quarantine
from pd_worker.transfer.receiver import KVReceiver
from pd_worker.transfer.renewal import Renewal
from pd_worker.transfer.watch import LinkTable

logger = logging.getLogger(__name__)

REPEAT_INFO_S = 5.0
REPEAT_ABORT_S = 1.0


class DecodeKVManager(CommonKVManager):
    """See BaseKVManager and the module's text."""

    def __init__(
        self,
        args: KVArgs,
        engines: Sequence[TransferEngine],
        options: LinkOptions,
        *,
        wake: Callable[[], None],
    ) -> None:
        """Open the regions to writers and start."""
        super().__init__(args, engines, options, wake=wake)
        for engine in self.engines.values():
            engine.register(args.kv_ptr, args.kv_nbytes)
            engine.register(args.meta_ptr, args.meta_nbytes)
        self.quarantine = Quarantine()
        self._receivers: dict[int, KVReceiver] = {}
        self._peers: dict[tuple[Endpoint, int], PrefillPeer] = {}
        self._links = LinkTable(self)
        self._renewal = Renewal(self)
        self._acks: dict[str, asyncio.Future[wire.RegisterAck]] = {}
        self._handlers: dict[type, Callable[..., None]] = {
            wire.RegisterAck: self._on_register_ack,
            wire.Status: self._on_status,
            wire.AbortAck: self._on_abort_ack,
            wire.Pong: self._on_pong,
        }
        self.control.start(self._on_message, self._on_tick)

    def create_receiver(self, host: str, port: int, room: int) -> KVReceiver:
        self.rooms.open(room)
        return KVReceiver(room, Endpoint(host, port), self)

    def reject(self, host: str, port: int, room: int, reason: str) -> None:
        self.control.call(self._reject, Endpoint(host, port), room, reason)

    def gauges(self) -> dict[str, float]:
        return {
            "kv_rooms": len(self.rooms),
            "kv_links": len(self._links),
            "kv_peers": len(self._peers),
            "kv_quarantined_rooms": len(self.quarantine),
            "kv_quarantined_pages": self.quarantine.num_pages,
        }

    def close(self) -> None:
        if self._closed:
            return
        for receiver in list(self._receivers.values()):
            receiver.fail("the decode worker is shutting down")
        super().close()

    # The rest runs on the control thread.

    def _on_message(self, message: wire.Message) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            raise WireError(f"a decode worker was sent {type(message).__name__}")
        self._links.heard_of(message.sender)
        handler(message)

    # Called by receivers (ReceiverHost):

    def attach(self, receiver: KVReceiver) -> None:
        """Find its prefill."""
        if receiver.poll() in TERMINAL:
            return
        self._receivers[receiver.room] = receiver
        receiver.peer = self._peer(receiver.server, receiver.dp_rank)
        receiver.timer.arm(
            self.options.bootstrap_timeout_s, partial(self._never_connected, receiver)
        )
        receiver.peer.join(receiver)

    def connected(self, receiver: KVReceiver) -> None:
        """Its prefill is found."""
        receiver.timer.cancel()
        self.rooms.update(receiver.room, KVPoll.WaitingForInput)

    def publish(self, receiver: KVReceiver) -> None:
        """Send its TransferInfo, unless the room has failed meanwhile: then nobody knows it."""
        if receiver.poll() == KVPoll.Failed:
            self._settle(receiver)
            return
        receiver.timer.arm(self.options.transfer_timeout_s, partial(self._never_done, receiver))
        self._send_info(receiver)

    def failed(self, receiver: KVReceiver, tell: bool) -> None:
        """Its room is Failed: keep the pages back, tell prefill."""
        receiver.timer.cancel()
        self.tally.add("kv_transfers_failed")
        if receiver.peer is not None:
            receiver.peer.leave(receiver.room)
        abort = self._abort_of(receiver.room, receiver.failure())
        if receiver.published_at and receiver.link is not None:
            now = time.monotonic()
            self.quarantine.hold(receiver.room, receiver.link, receiver.num_pages, now)
            if tell:
                self.send(receiver.link.endpoint, abort)
        else:
            self._settle(receiver)
            if tell:
                self._peer(receiver.server, receiver.dp_rank).tell(abort)

    def forget(self, receiver: KVReceiver) -> None:
        """The scheduler has cleared it; it stays here until it is drained."""
        receiver.timer.cancel()
        if receiver.drained:
            self._receivers.pop(receiver.room, None)

    def _settle(self, receiver: KVReceiver) -> None:
        receiver.settle()
        self.wake()
        if self.rooms.cleared(receiver.room):
            self._receivers.pop(receiver.room, None)

    def _send_info(self, receiver: KVReceiver) -> None:
        if receiver.link is not None and receiver.info is not None:
            receiver.published_at = receiver.link.used = time.monotonic()
            self.send(receiver.link.endpoint, receiver.info)

    def _abort_of(self, room: int, reason: str) -> wire.Abort:
        return wire.Abort(sender=self.incarnation, room=room, reason=reason[:1000])

    def _reject(self, server: Endpoint, room: int, reason: str) -> None:
        if self.rooms.outcome(room) is None:
            self._peer(server, 0).tell(self._abort_of(room, reason))

    def _never_connected(self, receiver: KVReceiver) -> None:
        trouble = "" if receiver.peer is None else receiver.peer.trouble
        receiver.fail(
            f"room={receiver.room} state=Bootstrapping prefill={receiver.server}: not registered "
            f"within {self.options.bootstrap_timeout_s:g} s: {trouble}"
        )

    def _never_done(self, receiver: KVReceiver) -> None:
        receiver.fail(
            f"room={receiver.room} state={NAMES[receiver.poll()]} prefill={receiver.server}: "
            f"no Status within {self.options.transfer_timeout_s:g} s"
        )

    # Messages of prefill:

    def _on_register_ack(self, ack: wire.RegisterAck) -> None:
        waiting = self._acks.get(ack.sender)
        if waiting is not None and not waiting.done():
            waiting.set_result(ack)

    def _on_status(self, status: wire.Status) -> None:
        receiver = self._receivers.get(status.room)
        if receiver is None or not _speaks_for(status, receiver.link):
            return
        if status.state == KVPoll.Failed:
            receiver.fail(status.reason or "prefill failed", tell=False)
        elif status.state == KVPoll.Success and receiver.published_at:
            receiver.timer.cancel()
            self.quarantine.acknowledged(status.room, status.sender, 0.0)
            receiver.settle()
            if self.rooms.update(status.room, KVPoll.Success):
                self.tally.add("kv_transfers_success")
            self._release()

    def _on_abort_ack(self, ack: wire.AbortAck) -> None:
        link = self._links.get(ack.sender)
        if link is not None:
            due = 0.0 if ack.clean else time.monotonic() + self._settle_s(link)
            self.quarantine.acknowledged(ack.room, ack.sender, due)
            self._release()

    def _on_pong(self, pong: wire.Pong) -> None:
        """Being heard was all."""

    # Prefill processes (PeerHost):

    def _peer(self, server: Endpoint, dp_rank: int) -> PrefillPeer:
        key = (server, dp_rank)
        peer = self._peers.get(key)
        if peer is None:
            peer = self._peers[key] = PrefillPeer(server, dp_rank, self)
        return peer

    def link_to(self, server: Endpoint, rank: RankAddress) -> Link:
        """The link to that process, an existing one if there is. Raises TransferError if it has
        ended."""
        return self._links.find(server, rank)

    async def register(self, link: Link) -> wire.RegisterAck:
        """Send Register and wait for the answer; raises TimeoutError."""
        await self._renewal.over()
        waiting = self._acks.get(link.incarnation)
        if waiting is None:
            waiting = self._acks[link.incarnation] = asyncio.get_running_loop().create_future()
        self.send(link.endpoint, self._hello(link))
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                ack = await asyncio.shield(waiting)
        finally:
            self._acks.pop(link.incarnation, None)
        engine = self.engines.get(ack.engine)
        if engine is not None:
            engine.reachable(ack.session)  # opens what `gone` looks at later
        return ack

    def _hello(self, link: Link) -> wire.Register:
        return wire.Register(
            version=PROTOCOL_VERSION,
            sender=self.incarnation,
            target=link.incarnation,
            host=self.endpoint.host,
            port=self.endpoint.port,
            kv=self.args,
            sessions={name: engine.session_id for name, engine in self.engines.items()},
        )

    def replaced(self, link: Link) -> None:
        """Another process has taken the link's place: its rooms fail. Its pages stay held."""
        self._links.lose(link, "was replaced by another process")

    # The watch over links (WatchHost, RenewalHost):

    def _on_tick(self, now: float) -> None:
        for held in self.quarantine.unanswered(now, REPEAT_ABORT_S):
            self.send(held.link.endpoint, self._abort_of(held.room, "aborted"))
        live = [r for r in self._receivers.values() if r.poll() not in TERMINAL]
        for receiver in live:
            if receiver.published_at and now - receiver.published_at > REPEAT_INFO_S:
                self._send_info(receiver)
        linked = {receiver.link for receiver in live if receiver.link is not None}
        self._links.tick(now, linked | {held.link for held in self.quarantine})
        busy = bool(linked or self._acks)
        self._renewal.tick(now, self.quarantine, self.engines, self._links, busy=busy)
        self._release()
        self._forget_peers()

    def gone(self, link: Link) -> bool:
        """Whether the link's engine knows that the process has ended."""
        engine = self.engines.get(link.engine)
        return engine is not None and engine.gone(link.session)

    def greet(self, link: Link) -> None:
        """Register again, in case it has forgotten us: it was stopped or out of reach for long."""
        self.send(link.endpoint, self._hello(link))

    def lost(self, link: Link, what: str) -> None:
        """Nothing more will come of the link: its rooms fail."""
        for receiver in list(self._receivers.values()):
            if receiver.link is link:
                receiver.fail(f"prefill worker {link.endpoint} {what}", tell=False)

    def ended(self, link: Link) -> None:
        """The process has certainly ended."""
        self.quarantine.writer_ended(link, time.monotonic() + self._settle_s(link))
        self._release()

    def dropped(self, link: Link) -> None:
        """Nobody uses the link any more."""
        if all(other.endpoint != link.endpoint for other in self._links):
            self.control.mailbox.drop(link.endpoint)
        if link.session and link.engine in self.engines:
            self.engines[link.engine].reset(link.session)

    def _forget_peers(self) -> None:
        """Forget addresses that nothing waits for and where nobody is known to live."""
        for key, peer in list(self._peers.items()):
            if peer.idle and (peer.link is None or self._links.get(peer.link.incarnation) is None):
                del self._peers[key]

    def revoked(self, engine: TransferEngine) -> None:
        """Writers that know the engine's old session reach nothing any more."""
        for link in self._links:
            link.stale = True
        for link in {held.link for held in self.quarantine if held.link.engine == engine.name}:
            self.quarantine.writer_ended(link, time.monotonic() + engine.settle_s)

    def _settle_s(self, link: Link) -> float:
        engine = self.engines.get(link.engine)
        return 0.0 if engine is None else engine.settle_s

    def _release(self) -> None:
        for room in self.quarantine.release(time.monotonic()):
            receiver = self._receivers.get(room)
            if receiver is not None:
                self._settle(receiver)


def _speaks_for(status: wire.Status, link: Link | None) -> bool:
    return link is not None and link.incarnation == status.sender

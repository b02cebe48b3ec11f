"""What both sides of the protocol share: the manager's life and the base of a room's two ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from pd_worker.errors import BackendUnavailable
from pd_worker.transfer import wire
from pd_worker.transfer.args import KVArgs, LinkOptions
from pd_worker.transfer.base import BaseKVManager
from pd_worker.transfer.control import Control
from pd_worker.transfer.engine import TransferEngine
from pd_worker.transfer.keys import bootstrap_token
from pd_worker.transfer.mailbox import Endpoint
from pd_worker.transfer.poll import RoomTable
from pd_worker.transfer.tally import Tally


class CommonKVManager(BaseKVManager):
    """Rooms, engines and the control thread of one process. Takes over the engines."""

    registry_right: Literal["read", "write"] = "read"
    """What this role may do on a bootstrap server."""

    def __init__(
        self,
        args: KVArgs,
        engines: Sequence[TransferEngine],
        options: LinkOptions,
        *,
        wake: Callable[[], None],
    ) -> None:
        """`engines` in order of preference; `wake` is called, on any thread, when the state of a
        room or `drained` of one of its ends changes.

        Raises BackendUnavailable without an engine, TransferError for a bad address or region.
        """
        if not engines:
            raise BackendUnavailable("no transfer engine can run here")
        self.args, self.options, self.wake = args, options, wake
        self.engines = {engine.name: engine for engine in engines}
        self.tally = Tally()
        self.rooms = RoomTable(wake)
        token = bootstrap_token(options.secret, self.registry_right)
        self.control = Control(options.host, options.secret, token, self.tally)
        self._closed = False

    @property
    def incarnation(self) -> str:
        """Of this process."""
        return self.options.incarnation

    @property
    def endpoint(self) -> Endpoint:
        """Where this process's control socket listens."""
        return self.control.mailbox.endpoint

    def problem(self) -> str:
        return self.control.problem()

    def counters(self) -> dict[str, float]:
        return self.tally.totals()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.control.close()
        for engine in self.engines.values():
            engine.close()

    def send(self, peer: Endpoint, message: wire.Message) -> None:
        """Queue a message; control thread only."""
        self.control.send(peer, message)


class Timer:
    """One pending deadline of a room; control thread only."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._handle: asyncio.Handle | None = None

    def arm(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call `function` after `delay_s`, instead of whatever was pending."""
        self.cancel()
        self._handle = self._control.later(delay_s, function)

    def cancel(self) -> None:
        """Call nothing."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

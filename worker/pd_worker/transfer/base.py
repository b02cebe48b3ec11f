"""The outer interface of the transfer layer: what the scheduler calls.

    BaseKVManager    one a process; owns regions, sockets and threads
    BaseKVSender     one a request on prefill
    BaseKVReceiver   one a request on decode

All methods except the manager's constructor and `close` cost microseconds: they read or change
memory and hand the rest to the manager's threads. They are called on the scheduler's thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from pd_worker.errors import InvalidRequest

Indices = npt.NDArray[np.int32]


class BaseKVSender(ABC):
    """Prefill's end of one room. Life: Bootstrapping → WaitingForInput (decode's pages are known;
    call `init`) → Transferring (after the first `send`) → Success or Failed → `clear`."""

    @abstractmethod
    def init(self, num_kv_indices: int, aux_index: int) -> None:
        """Fix how many pages will be sent in all and which metadata slot follows them.

        Call it in WaitingForInput. A count other than decode's fails the room.
        """

    @abstractmethod
    def send(
        self,
        kv_indices: Indices,
        state_indices: Indices | None = None,
        *,
        num_kv_tokens: int,
    ) -> None:
        """Queue the next pages, in the order of the request's tokens.

        The call that completes `num_kv_indices` is the last; the metadata slot is sent behind it,
        so the slot must be filled before. Pages and slot must stay as they are until `drained`.
        On a failed room it does nothing. Raises IntegrityError for more pages than announced.
        """

    @abstractmethod
    def poll(self) -> int:
        """The state, a KVPoll constant."""

    @abstractmethod
    def failure(self) -> str:
        """Why the state is Failed; else empty."""

    @abstractmethod
    def clear(self) -> None:
        """End the room; the last call on this object. An unfinished room is aborted."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Fail the room, tell decode at once, stop writing. Without effect on a finished room."""

    @property
    def drained(self) -> bool:
        """True once no thread reads the source pages and slot; until then they must not be freed.

        Success implies it; after a failure it follows within the engine's write timeout, and
        `wake` is called when it does.
        """
        return True


class BaseKVReceiver(ABC):
    """Decode's end of one room. Life: Bootstrapping (after `init`) → WaitingForInput (prefill is
    known and knows us) → Transferring (after `send_metadata`) → Success or Failed → `clear`."""

    @abstractmethod
    def init(self, prefill_dp_rank: int = 0) -> None:
        """Start to look up the prefill and, the first time, to register with it."""

    @abstractmethod
    def send_metadata(
        self,
        kv_indices: Indices,
        aux_index: int,
        state_indices: Indices | None = None,
        *,
        decode_prefix_len: int = 0,
    ) -> None:
        """Publish where the KV and the metadata go; call it in WaitingForInput.

        From now on pages and slot belong to the writer until `drained`.
        """

    @abstractmethod
    def poll(self) -> int:
        """The state, a KVPoll constant."""

    @abstractmethod
    def failure(self) -> str:
        """Why the state is Failed; else empty."""

    @abstractmethod
    def clear(self) -> None:
        """End the room; the last call on this object. An unfinished room is aborted."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """Fail the room and tell prefill at once. Without effect on a finished room."""

    @property
    def drained(self) -> bool:
        """True once no writer can touch the pages and slot; until then they must not be reused.

        Success implies it; after a failure it follows on the writer's word or its proven death,
        never on a mere timer, and `wake` is called when it does.
        """
        return True


class BaseKVManager(ABC):
    """One a process: makes senders or receivers and reports the health of its threads."""

    def create_sender(self, room: int) -> BaseKVSender:
        """Prefill's end of a new room. Raises InvalidRequest for a room in use or just used."""
        raise InvalidRequest(f"room {room}: this worker is not a prefill worker")

    def create_receiver(self, host: str, port: int, room: int) -> BaseKVReceiver:
        """Decode's end of a new room; (host, port) is the prefill's BootstrapServer.

        Raises InvalidRequest for a room in use or just used.
        """
        raise InvalidRequest(f"room {room}: this worker is not a decode worker")

    @abstractmethod
    def reject(self, host: str, port: int, room: int, reason: str) -> None:
        """The API refused this leg before a sender or receiver existed: tell the other leg."""

    @abstractmethod
    def problem(self) -> str:
        """Empty, or why /health must be red: a thread of ours died or hangs."""

    @abstractmethod
    def close(self) -> None:
        """End all rooms, tell the peers, stop threads, close sockets and engines.

        Blocks, but only for seconds. Later calls do nothing.
        """

    def gauges(self) -> dict[str, float]:
        """Current values by metric name."""
        return {}

    def counters(self) -> dict[str, float]:
        """Running totals by metric name."""
        return {}

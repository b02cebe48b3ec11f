"""A transfer engine: one-sided writes from this process's memory into a peer's.

Implementations are in engines/, others come through the entry-point group `pdserve.kv_backends`.
An engine knows addresses and bytes, nothing of pages, rooms or requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from pd_worker.errors import TransferError
from pd_worker.transfer.blocks import Addresses


class TransferEngine(ABC):
    """One transport of this process. All methods are thread-safe."""

    name: str
    """Short name by which two sides find an engine that both have."""
    registers_source = True
    """Whether memory that is only read by writes has to be registered as well."""
    settle_s = 0.0
    """How long bytes may still arrive after the writer died or a write of its broke off."""
    renewable = False
    """Whether `renew` works."""

    @property
    @abstractmethod
    def session_id(self) -> str:
        """How peers name this engine in `write`; travels in the registration."""

    @abstractmethod
    def register(self, addr: int, nbytes: int) -> None:
        """Open a region to the writes of peers. Raises TransferError."""

    @abstractmethod
    def unregister(self, addr: int) -> None:
        """Close the region that starts at `addr`: later writes into it fail."""

    @abstractmethod
    def write(
        self, session_id: str, src_addrs: Addresses, dst_addrs: Addresses, lengths: Addresses
    ) -> None:
        """Copy `lengths[i]` bytes from our `src_addrs[i]` to the peer's `dst_addrs[i]`, all i.

        Arrays are int64 of one length. Blocks until all bytes are at the destination. Raises
        TransferError when some may not be, or the peer refuses an address. Once it returned or
        raised, nothing of ours touches source or destination any more (but see `settle_s`).
        """

    @abstractmethod
    def close(self) -> None:
        """Give everything back; writes in progress elsewhere fail."""

    def reachable(self, session_id: str) -> bool:
        """Whether `write` to that peer can work, as far as can be told without writing."""
        return bool(session_id)

    def gone(self, session_id: str) -> bool:
        """True only where it is certain that the process behind the session has ended."""
        return False

    def renew(self) -> None:
        """Open the registered regions under a new `session_id` and shut them under the old one.

        May block. Raises TransferError; then both ids may be dead.
        """
        raise TransferError(f"{self.name} cannot take access back")

    def reset(self, session_id: str) -> None:  # noqa: B027 (most engines cache nothing)
        """Forget what is cached of a peer, after a failed write or when the peer is gone. Does not
        raise."""

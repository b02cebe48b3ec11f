"""Engines without a network: `FakeEngine` for warm-up and benchmarks, and `TamperedEngine`, which
wraps another engine and does to its writes what a bad network would."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from pd_worker.errors import TransferError
from pd_worker.transfer.blocks import Addresses
from pd_worker.transfer.engine import TransferEngine

_numbers = itertools.count(1)


class FakeEngine(TransferEngine):
    """Writes nothing and says at once that it is done; refuses sessions that are not fake."""

    name = "fake"
    registers_source = False

    def __init__(self) -> None:
        self._session_id = f"fake-{next(_numbers)}"

    @property
    def session_id(self) -> str:
        return self._session_id

    def register(self, addr: int, nbytes: int) -> None:
        """Nothing to open."""

    def unregister(self, addr: int) -> None:
        """Nothing to close."""

    def write(
        self, session_id: str, src_addrs: Addresses, dst_addrs: Addresses, lengths: Addresses
    ) -> None:
        if not self.reachable(session_id):
            raise TransferError(f"fake: {session_id!r} is not a fake session")

    def reachable(self, session_id: str) -> bool:
        return session_id.startswith("fake-")

    def close(self) -> None:
        """Nothing to give back."""


Tamper = Callable[[str], bool]
"""Called before a write with the session id. It may sleep (a slow network), raise TransferError
(a broken one), or return False (the write is lost and yet reported as done)."""


class TamperedEngine(TransferEngine):
    """Another engine with a hook in front of every write."""

    def __init__(self, inner: TransferEngine, tamper: Tamper) -> None:
        self._inner, self._tamper = inner, tamper
        self.name = inner.name
        self.registers_source = inner.registers_source
        self.settle_s = inner.settle_s
        self.renewable = inner.renewable
        self._lock = threading.Lock()
        self.writes = 0

    @property
    def session_id(self) -> str:
        return self._inner.session_id

    def register(self, addr: int, nbytes: int) -> None:
        self._inner.register(addr, nbytes)

    def unregister(self, addr: int) -> None:
        self._inner.unregister(addr)

    def write(
        self, session_id: str, src_addrs: Addresses, dst_addrs: Addresses, lengths: Addresses
    ) -> None:
        with self._lock:
            self.writes += 1
        if self._tamper(session_id):
            self._inner.write(session_id, src_addrs, dst_addrs, lengths)

    def reachable(self, session_id: str) -> bool:
        return self._inner.reachable(session_id)

    def gone(self, session_id: str) -> bool:
        return self._inner.gone(session_id)

    def renew(self) -> None:
        self._inner.renew()

    def reset(self, session_id: str) -> None:
        self._inner.reset(session_id)

    def close(self) -> None:
        self._inner.close()

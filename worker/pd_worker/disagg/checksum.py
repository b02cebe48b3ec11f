"""The optional KV checksum: detects KV that was changed, lost or mixed up on its way.

Both sides of a pair keep one or neither does (checked at the handshake). It covers whole pages as
they are written, so also the unused end of the last one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pd_worker.memory.pages import Pages

Checksum = Callable[[Pages], int | None]
"""Pages of a request in order → its checksum, or None where none is kept."""


class SavedPages(Protocol):
    """Where the bytes of pages are (the KV pool)."""

    def save(self, pages: Pages) -> Any:
        """A host copy of the pages that numpy can read."""


def no_checksum(pages: Pages) -> None:
    """The Checksum of a worker that keeps none."""


def crc32_checksum(store: SavedPages) -> Checksum:
    """The CRC-32 of the pages' bytes."""
    return lambda pages: zlib.crc32(np.ascontiguousarray(store.save(pages)).data)

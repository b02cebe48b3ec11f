"""Whether a silent peer's process still exists. A closed port is proof; silence is not."""

from __future__ import annotations

import asyncio
import contextlib
import enum

from pd_worker.transfer.mailbox import Endpoint

KNOCK_TIMEOUT_S = 1.0


class Door(enum.Enum):
    """What a TCP connection to a control socket found."""

    OPEN = "open"  # somebody listens, perhaps stopped or hanging
    CLOSED = "closed"  # the machine answers that nobody listens: the process has ended
    SILENT = "silent"  # no answer: a network fault, a lost machine, or an address that moved


async def knock(peer: Endpoint) -> Door:
    """Connect to a control socket and hang up."""
    try:
        async with asyncio.timeout(KNOCK_TIMEOUT_S):
            _, writer = await asyncio.open_connection(peer.host, peer.port)
    except ConnectionRefusedError:
        return Door.CLOSED
    except (OSError, TimeoutError):
        return Door.SILENT
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return Door.OPEN

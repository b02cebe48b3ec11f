"""How the ranks of one worker come to see the same transfer states (SGLang: poll_and_all_reduce).

Every rank polls its own sender or receiver of each request; a request has moved on when it has
moved on everywhere, so the ranks agree on the minimum. KVPoll.Failed is 0: one rank's failure is
everyone's. All ranks must ask in the same step with requests in the same order, also when they have
none to ask about, or a collective would wait for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Poller(Protocol):
    """A sender or receiver of the KV manager."""

    def poll(self) -> int:
        """Current KVPoll state."""


class RankGroup(Protocol):
    """The ranks that hold parts of the same requests (tensor or context parallel)."""

    def minimum(self, values: list[int]) -> list[int]:
        """Element-wise minimum over all ranks; a collective, called by every rank each step."""


class SoloGroup:
    """A group of one rank."""

    def minimum(self, values: list[int]) -> list[int]:
        """The values themselves."""
        return values


def poll_and_all_reduce(pollers: Sequence[Poller], group: RankGroup) -> list[int]:
    """KVPoll states on which all ranks agree, in the order of `pollers`."""
    return group.minimum([poller.poll() for poller in pollers])

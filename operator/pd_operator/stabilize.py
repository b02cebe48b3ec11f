"""The memory of one role's proposals, which keeps noise and spikes from moving it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pd_operator.proposal import Limit

MAX_GAP_S = 60.0
"""Proposals further apart than this (or than the up window) are no continuous memory."""
REGRET_S = 1800.0
"""A raise so soon after a lowering takes it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """How long a proposal must hold until it moves a role."""

    up_s: float = 30.0
    down_s: float = 300.0

    @property
    def longest(self) -> float:
        return max(self.up_s, self.down_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleHistory:
    """What a role's earlier decisions leave for later ones."""

    proposals: tuple[tuple[float, int], ...] = ()
    """Time and replicas, oldest first."""
    limit: Limit | None = None
    lowered_at: float | None = None
    """When its metrics last lowered it."""

    def extended(self, windows: Windows, now: float, current: int, proposed: int) -> RoleHistory:
        """With one proposal more, without what is too old to matter.

        A new memory, or one with a gap, begins with the present size.
        """
        gap = now - self.proposals[-1][0] if self.proposals else float("inf")
        start = ((now, current),) if gap > max(windows.up_s, MAX_GAP_S) else ()
        entries = (*self.proposals, *start, (now, proposed))
        oldest = now - windows.longest - MAX_GAP_S
        kept = tuple(entry for entry in entries if entry[0] >= oldest)
        return replace(self, proposals=kept)

    def stable(self, windows: Windows, now: float, current: int) -> int:
        """`current`, raised to the least of the up window, lowered to the most of the down one."""
        raised = max(current, min(self._within(now - windows.up_s)))
        return min(raised, max(self._within(now - windows.down_s)))

    def after(self, now: float, change: int, *, work: float | None, pressed: bool) -> RoleHistory:
        """Having decided on a change; a raise may teach what `work` a worker cannot bear."""
        if change < 0:
            return replace(self, lowered_at=now)
        regret = self.lowered_at is not None and now - self.lowered_at <= REGRET_S
        if change > 0 and work and (pressed or regret):
            return replace(self, limit=Limit(at=now, tokens_s=work))
        return self

    def _within(self, since: float) -> list[int]:
        """Proposals since then; where the first came later, also the one in force until it."""
        within = [entry for entry in self.proposals if entry[0] >= since]
        before = self.proposals[: len(self.proposals) - len(within)]
        if before and (not within or within[0][0] > since):
            within.insert(0, before[-1])
        return [replicas for _, replicas in within]

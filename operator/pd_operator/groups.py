"""Workers of several nodes: their pods fail together and start together. Pure.

A rank that restarts alone meets ranks that wait for one that is gone. So when one pod of a worker
crashes, or was replaced while the others served, the others are deleted, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pd_operator import names
from pd_operator.observed import Observed, Pod
from pd_operator.resource import Resource
from pd_operator.roster import crews

FAILED = ("CrashLooping", "StartupTimeout", "PodFailed")
FIRST_PAUSE_S = 30.0
LONGEST_PAUSE_S = 600.0
FORGOTTEN_S = 3600.0
"""A worker that did well for so long begins with the first pause again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A worker's last restart."""

    at: float
    count: int = 1

    @property
    def pause_s(self) -> float:
        """Until the next one is allowed."""
        return min(FIRST_PAUSE_S * 2.0 ** (self.count - 1), LONGEST_PAUSE_S)


Restarts = Mapping[tuple[names.Role, int], Restart]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regrouping:
    """Pods to delete now, and what to remember of it."""

    deletes: tuple[Pod, ...]
    restarts: Restarts
    again_after_s: float = float("inf")


def regroup(resource: Resource, observed: Observed, restarts: Restarts, now: float) -> Regrouping:
    """What must go so that each worker's pods belong together."""
    deletes: list[Pod] = []
    kept = {key: each for key, each in restarts.items() if now - each.at < FORGOTTEN_S}
    again = [float("inf")]
    for role in names.ROLES:
        if resource.role(role).nodes_per_worker == 1:
            continue
        for ordinal, pods in crews(resource, observed, role).items():
            living = [pod for pod in pods if not pod.terminating]
            if not any(pod.reason in FAILED for pod in living):
                deletes += _left_behind(pods, living)
                continue
            last = kept.get((role, ordinal))
            if last and now - last.at < last.pause_s:
                again.append(last.at + last.pause_s - now)
                continue
            deletes += living
            kept[role, ordinal] = Restart(at=now, count=last.count + 1 if last else 1)
    return Regrouping(deletes=tuple(deletes), restarts=kept, again_after_s=min(again))


def _left_behind(pods: Sequence[Pod], living: Sequence[Pod]) -> list[Pod]:
    """Those that served already when the newest one of the worker was made."""
    newest = max((pod.created_at for pod in pods), default=0.0)
    return [pod for pod in living if pod.ready_since is not None and pod.ready_since < newest]

"""How a change of the workers' templates is carried out: one step at a time. Pure.

reconcile calls `step` with what is there, writes the partitions and replicas that it returns, and
calls it again when something has changed. Nothing is remembered but when progress was made last:
every step follows from what is there, so an operator may stop at any moment, and a new template,
a way back to the old one or another size may come at any moment.

The life of a rollout with room for a surge:

1. The template is new: no worker is. Partition = replicas, so that nothing old is touched, and
   replicas + surge, so that the new ordinals come up on the new revision.
2. They are ready in both roles: the partitions go down as far as partition.py allows, again and
   again, until both are 0.
3. All workers are new: replicas go back as soon as the ones that stay are ready.

Without room the first step already lowers a partition, within max_unavailable. A role whose
template has not changed is not touched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pd_operator.fleet import Fleet, slots
from pd_operator.partition import Part, lowest

Strategy = Literal["Paired", "InPlace", "Recreate"]
Phase = Literal["Complete", "Progressing", "Paused", "Stalled"]
Reason = Literal[
    "RolledOut",
    "Updating",
    "Paused",
    "PairingKeyMismatch",
    "WaitingForSurgeCapacity",
    "UpdatedWorkersBroken",
    "ProgressDeadlineExceeded",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleGoal:
    """What one role should become."""

    replicas: int
    """Workers, without a surge. Where someone else scales the role: as many as it has."""
    key: str
    """Pairing key of new workers."""
    max_surge: int = 0
    """0 where someone else scales the role, too."""
    max_unavailable: int = 0
    devices: int = 0
    """Of one worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What both roles should become, and how."""

    prefill: RoleGoal
    decode: RoleGoal
    revision: str = ""
    """Names both templates: with another one a rollout begins anew."""
    strategy: Strategy = "Paired"
    paused: bool = False
    budget: int | None = None
    """Devices for all workers, surge included."""
    deadline_s: float = 3600.0

    @property
    def mismatch(self) -> bool:
        """New prefill and new decode workers would find no partner."""
        return self.strategy == "Paired" and self.prefill.key != self.decode.key


@dataclass(frozen=True, slots=True, kw_only=True)
class Now:
    """Both roles as they are."""

    prefill: Fleet
    decode: Fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a rollout has come, and when it came so far. Losing it costs no safety."""

    revision: str
    updated: int
    """Most workers that were new and ready at a time."""
    since: float
    done: bool = False
    """It was complete once; what fails later is no matter of the rollout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStep:
    """What the StatefulSet of a role should be now, in workers."""

    replicas: int
    partition: int
    replaced: tuple[int, ...] = ()
    """Ordinals of released old workers that may be deleted at once, as they serve nobody. (The
    StatefulSet's controller takes one at a time, and may wait for broken ones for ever.)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Both roles' steps, and what to tell people."""

    prefill: RoleStep
    decode: RoleStep
    phase: Phase
    reason: Reason
    message: str
    progress: Progress
    """To be handed to the next call."""


def step(goal: Goal, now: Now, progress: Progress | None, clock: float) -> Step:
    """The next step. `clock` is in seconds and does not run backwards."""
    surges = _surges(goal, now)
    prefill = _Role("prefill", goal, goal.prefill, now.prefill, surges[0])
    decode = _Role("decode", goal, goal.decode, now.decode, surges[1])
    partitions = _partitions(goal, prefill, decode)
    phase, reason, message = _tell(goal, prefill, decode)
    progress = _advanced(goal, progress, prefill.updated + decode.updated, clock)
    if phase == "Complete" or (progress.done and not (prefill.rolling or decode.rolling)):
        phase, progress = "Complete", replace(progress, done=True)
    elif phase == "Progressing" and clock - progress.since >= goal.deadline_s:
        message = f"no progress for {goal.deadline_s:.0f} s ({reason}): {message}"
        phase, reason = "Stalled", "ProgressDeadlineExceeded"
    return Step(
        prefill=prefill.step(partitions[0]),
        decode=decode.step(partitions[1]),
        phase=phase,
        reason=reason,
        message=message,
        progress=progress,
    )


def _advanced(goal: Goal, progress: Progress | None, updated: int, clock: float) -> Progress:
    if progress is None or progress.revision != goal.revision:
        return Progress(revision=goal.revision, updated=updated, since=clock)
    if updated > progress.updated:
        return replace(progress, updated=updated, since=clock)
    return progress


def _surges(goal: Goal, now: Now) -> tuple[int, int]:
    """Workers above their replicas that the roles may have; the smaller role comes first, since
    it has the greater need of a second one."""
    roles = ((goal.prefill, now.prefill), (goal.decode, now.decode))
    used = sum(role.devices * max(role.replicas, fleet.replicas) for role, fleet in roles)
    spare = goal.budget - used if goal.budget is not None else None
    surges = [0, 0]
    for index in sorted((0, 1), key=lambda index: roles[index][0].replicas):
        role, fleet = roles[index]
        present = max(fleet.replicas - role.replicas, 0)
        more = max(role.max_surge - present, 0)
        if spare is not None and role.devices:
            more = min(more, max(spare, 0) // role.devices)
            spare -= more * role.devices
        surges[index] = min(role.max_surge, present + more)
    return surges[0], surges[1]


class _Role:
    """One role on its way through a step."""

    def __init__(self, name: str, goal: Goal, own: RoleGoal, fleet: Fleet, surge: int) -> None:
        self.name, self._goal, self._own, self._fleet = name, goal, own, fleet
        self.slots = slots(fleet, own.key)
        self.rolling = any(not slot.new for slot in self.slots)
        self.held = goal.paused or goal.mismatch
        self._surge = surge if self.rolling and goal.strategy != "Recreate" else 0

    @property
    def updated(self) -> int:
        """Workers that are new and ready."""
        return sum(slot.new and slot.ready for slot in self.slots)

    @property
    def complete(self) -> bool:
        return len(self.slots) == self.updated == self._own.replicas

    @property
    def released(self) -> int:
        return self._fleet.released if self.rolling else 0

    @property
    def part(self) -> Part:
        """As the search for partitions sees it."""
        unavailable = self._own.max_unavailable if self._surge else self._least_unavailable
        anyone = self._goal.strategy == "InPlace"
        return Part(
            slots=tuple(replace(slot, key="any") for slot in self.slots) if anyone else self.slots,
            released=self.released,
            required=self._own.replicas - unavailable,
        )

    @property
    def _least_unavailable(self) -> int:
        return max(self._own.max_unavailable, 1)

    @property
    def replicas(self) -> int:
        """Grows at once. While rolling no new worker is taken away; otherwise a ready one above the
        goal stays as long as it stands in for one below that is not."""
        if not self.rolling:
            return self._without_excess()
        newest = max((slot.ordinal + 1 for slot in self.slots if slot.new), default=0)
        return max(self._own.replicas + (0 if self.held else self._surge), newest)

    @property
    def grows(self) -> bool:
        """It is about to have more workers."""
        return self.replicas > self._fleet.replicas

    def _without_excess(self) -> int:
        ready = sum(slot.ready for slot in self.slots)
        required = min(self._own.replicas, ready)
        count = self._own.replicas
        while sum(slot.ready for slot in self.slots[:count]) < required:
            count += 1
        return count

    def step(self, partition: int) -> RoleStep:
        old = [slot for slot in self.slots if not slot.new and slot.ordinal >= partition]
        at_once = self._goal.strategy == "Recreate"
        present = {worker.ordinal for worker in self._fleet.workers if not worker.terminating}
        return RoleStep(
            replicas=self.replicas,
            partition=min(partition, self.replicas),
            replaced=tuple(
                slot.ordinal
                for slot in old
                if slot.ordinal in present and (at_once or slot.hopeless)
            ),
        )


def _partitions(goal: Goal, prefill: _Role, decode: _Role) -> tuple[int, int]:
    if prefill.held:
        return prefill.released, decode.released
    if goal.strategy == "Recreate":
        return 0, 0
    growing = prefill.grows or decode.grows
    return lowest(prefill.part, decode.part, growing=growing)


def _tell(goal: Goal, prefill: _Role, decode: _Role) -> tuple[Phase, Reason, str]:
    roles = (prefill, decode)
    if all(role.complete for role in roles):
        return "Complete", "RolledOut", "all workers are of the wanted revision and ready"
    counts = "; ".join(f"{role.name}: {role.updated} updated and ready" for role in roles)
    rolling = any(role.rolling for role in roles)
    if rolling and goal.paused:
        return "Paused", "Paused", f"rollout.paused is set; {counts}"
    if rolling and goal.mismatch:
        message = "prefill and decode would not pair with each other: make their settings agree"
        return "Stalled", "PairingKeyMismatch", message
    new = [slot.state for role in roles for slot in role.slots if slot.new]
    if "broken" in new:
        return "Progressing", "UpdatedWorkersBroken", f"updated workers do not start; {counts}"
    if "pending" in new:
        return "Progressing", "WaitingForSurgeCapacity", f"no node for an updated worker; {counts}"
    return "Progressing", "Updating", counts

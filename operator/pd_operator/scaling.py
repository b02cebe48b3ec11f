"""Provider Builtin: how many prefill and decode workers there should be. Pure: no I/O, no clock.

reconcile scrapes the workers, calls `decide` every interval and keeps the History that it returns.
In this order:

1. Each role's targets propose a number; the largest counts (proposal.py). A role holds when its
   metrics are missing, and never shrinks on a part of them. A role's proposals count for nothing
   while the other one is the bottleneck: more prefill only lengthens the queue for decode's
   memory, and more decode memory only fills with requests that wait for prefill.
2. The proposals of a window are looked at together: up goes to the least of the short up window,
   down to the greatest of the long down window, so that noise and spikes move nothing. A new
   history begins with the present size: a restarted operator changes nothing by itself.
3. Nothing grows while a pod of the role finds no node: another one would find none either.
4. Bounds, P:D ratio and device budget (sizing.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pd_operator.metrics import WorkerLoad
from pd_operator.proposal import PRESSURES, Floor, Target, Vote, Workers, floor, mean, vote
from pd_operator.sizing import Bounds, Limits, Size, nearest
from pd_operator.stabilize import RoleHistory, Windows

Reason = Literal[
    "AsNeeded",
    "Fixed",
    "Stabilizing",
    "NoReadyWorkers",
    "MetricsStale",
    "DecodeBottleneck",
    "PrefillBottleneck",
    "InsufficientCapacity",
    "BoundsClamped",
    "RatioClamped",
    "BudgetClamped",
]
STALE_S = 60.0
"""A load older than this counts as missing; four of the usual intervals."""
QUEUED = 1.0
"""Mean queue of a role's workers from which it counts as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleScaling:
    """How one role is scaled."""

    bounds: Bounds
    targets: tuple[Target, ...] = ()
    """Empty: the role keeps its size (but for bounds, ratio and budget)."""
    windows: Windows = field(default_factory=Windows)
    tolerance: float = 0.1
    """Deviation from a target that moves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingSpec:
    """What the PDDeployment asks for. A role that others scale has equal bounds and no targets."""

    prefill: RoleScaling
    decode: RoleScaling
    ratio: tuple[Size, Size] | None = None
    budget: int | None = None
    """Devices for all workers, less what a rollout's surge holds."""
    prefill_devices: int = 1
    decode_devices: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleObserved:
    """One role as it is."""

    replicas: int
    """As asked for, without a rollout's surge."""
    ready: int
    starting: int = 0
    """Pods on their way to ready; broken ones are not."""
    unschedulable: int = 0
    """Pods for which there is no node."""
    loads: tuple[WorkerLoad, ...] = ()
    """Of its ready workers; old ones are sorted out here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Both roles as they are."""

    prefill: RoleObserved
    decode: RoleObserved


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Of both roles; reconcile keeps it and looks at nothing in it."""

    prefill: RoleHistory = field(default_factory=RoleHistory)
    decode: RoleHistory = field(default_factory=RoleHistory)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleDecision:
    """The new number of replicas, and why it is that."""

    replicas: int
    reason: Reason
    message: str

    @property
    def active(self) -> bool:
        """False while the metrics do not allow a decision (condition ScalingActive)."""
        return self.reason not in ("MetricsStale", "NoReadyWorkers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Of both roles, and what the next one needs to know."""

    prefill: RoleDecision
    decode: RoleDecision
    history: History


def decide(spec: ScalingSpec, observed: Observed, history: History, now: float) -> Decision:
    """The sizes that both roles should have now. `now` never runs backwards."""
    workers = _workers(observed.prefill, now), _workers(observed.decode, now)
    held = _held(*workers)
    prefill = _wish(spec.prefill, workers[0], history.prefill, now, "prompt_tokens_s", held[0])
    decode = _wish(spec.decode, workers[1], history.decode, now, "output_tokens_s", held[1])
    p, d = _clamp(spec, observed, prefill.decision, decode.decision)
    return Decision(
        prefill=p,
        decode=d,
        history=History(
            prefill=prefill.after(p, observed.prefill, now),
            decode=decode.after(d, observed.decode, now),
        ),
    )


def _held(prefill: Workers, decode: Workers) -> tuple[RoleDecision | None, RoleDecision | None]:
    """Why each role must keep its size: what waits in decode waits for which of them?

    Decode's memory is held by requests that run there or by those whose KV prefill has yet to
    send; whoever holds the greater part is the one to speed up.
    """
    running, unsent = (mean(decode.loads, name) or 0.0 for name in ("running", "transfer_queue"))
    waiting = mean(decode.loads, "prealloc_queue") or 0.0
    queue = mean(prefill.loads, "queue") or 0.0
    if waiting >= QUEUED and running >= unsent:
        message = f"{waiting:.3g} requests a worker wait for decode's memory"
        return _keep(prefill, "DecodeBottleneck", message), None
    if queue >= QUEUED and running < unsent:
        message = f"{unsent:.3g} requests a worker wait for prefill, {running:.3g} run"
        return None, _keep(decode, "PrefillBottleneck", message)
    return None, None


def _keep(workers: Workers, reason: Reason, message: str) -> RoleDecision:
    return RoleDecision(replicas=workers.replicas, reason=reason, message=message)


def _workers(observed: RoleObserved, now: float) -> Workers:
    fresh = tuple(load for load in observed.loads if now - load.at <= STALE_S)
    return Workers(
        replicas=observed.replicas,
        ready=observed.ready,
        starting=observed.starting,
        unschedulable=observed.unschedulable,
        loads=fresh,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What one role would do by itself."""

    decision: RoleDecision
    history: RoleHistory
    work: float | None
    """Tokens a second of one worker."""
    cause: Vote | None
    """The vote that it follows; None where it keeps its size."""

    def after(self, decision: RoleDecision, observed: RoleObserved, now: float) -> RoleHistory:
        """What to remember once it is decided."""
        if self.cause is None:
            return self.history
        pressed = self.cause.target.type in PRESSURES
        change = decision.replicas - observed.replicas
        return self.history.after(now, change, work=self.work, pressed=pressed)


def _wish(
    spec: RoleScaling,
    workers: Workers,
    history: RoleHistory,
    now: float,
    work_field: str,
    held: RoleDecision | None,
) -> _Wish:
    """Steps 1 to 3 for one role; `held`: it must keep its size, and its metrics mean nothing."""
    if held:
        return _Wish(decision=held, history=history, work=None, cause=None)
    work = mean(workers.loads, work_field)
    limit = history.limit.now(now) if history.limit else None
    proposal, cause = _propose(spec, workers, floor(workers, work, limit))
    history = history.extended(spec.windows, now, workers.replicas, proposal.replicas)
    stable = history.stable(spec.windows, now, workers.replicas)
    return _Wish(
        decision=_settled(proposal, stable, workers), history=history, work=work, cause=cause
    )


def _propose(
    spec: RoleScaling, workers: Workers, lowest: Floor
) -> tuple[RoleDecision, Vote | None]:
    """Step 1, and the vote that decided it."""
    if not spec.targets:
        return _keep(workers, "Fixed", "not scaled by metrics"), None
    if not workers.ready:
        return _keep(workers, "NoReadyWorkers", "no worker is ready"), None
    cast = [
        vote(target, workers, tolerance=spec.tolerance, floor=lowest) for target in spec.targets
    ]
    votes = [entry for entry in cast if entry is not None]
    if not votes:
        return _keep(workers, "MetricsStale", f"none of its metrics for {STALE_S:.0f} s"), None
    cause = max(votes, key=lambda entry: entry.replicas)
    partly = len(votes) < len(spec.targets) or not workers.complete
    if partly and cause.replicas < workers.replicas:
        return _keep(workers, "MetricsStale", "some metrics are missing: no scale-down"), None
    replicas = max(cause.replicas, spec.bounds.least)
    return RoleDecision(replicas=replicas, reason="AsNeeded", message=str(cause)), cause


def _settled(proposal: RoleDecision, stable: int, workers: Workers) -> RoleDecision:
    """Steps 2 and 3."""
    if stable > workers.replicas and workers.unschedulable:
        message = f"{workers.unschedulable} pods find no node; {proposal.message}"
        return _keep(workers, "InsufficientCapacity", message)
    if stable == proposal.replicas:
        return proposal
    message = f"{proposal.message}; would be {proposal.replicas}"
    return RoleDecision(replicas=stable, reason="Stabilizing", message=message)


def _clamp(
    spec: ScalingSpec, observed: Observed, prefill: RoleDecision, decode: RoleDecision
) -> tuple[RoleDecision, RoleDecision]:
    """Step 4."""
    limits = Limits(
        prefill=_room(spec.prefill.bounds, observed.prefill),
        decode=_room(spec.decode.bounds, observed.decode),
        ratio=spec.ratio,
        budget=spec.budget,
        prefill_devices=spec.prefill_devices,
        decode_devices=spec.decode_devices,
    )
    wanted = Size(prefill=prefill.replicas, decode=decode.replicas)
    size = nearest(limits, wanted)
    if size is None:
        size = Size(prefill=observed.prefill.replicas, decode=observed.decode.replicas)
    reason = _why(limits, wanted)
    return (
        _clamped(prefill, size.prefill, reason, wanted),
        _clamped(decode, size.decode, reason, wanted),
    )


def _room(bounds: Bounds, observed: RoleObserved) -> Bounds:
    """The bounds, without growth where a pod already finds no node."""
    if not observed.unschedulable:
        return bounds
    return Bounds(least=bounds.least, most=max(bounds.least, min(bounds.most, observed.replicas)))


def _why(limits: Limits, wanted: Size) -> Reason:
    bounded = limits.bounded(wanted)
    if not limits.in_ratio(bounded):
        return "RatioClamped"
    return "BoundsClamped" if limits.in_budget(bounded) else "BudgetClamped"


def _clamped(role: RoleDecision, replicas: int, reason: Reason, wanted: Size) -> RoleDecision:
    if replicas == role.replicas:
        return role
    message = f"{role.message}; {wanted} is not allowed"
    return RoleDecision(replicas=replicas, reason=reason, message=message)

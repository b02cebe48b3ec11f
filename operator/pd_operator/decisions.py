"""How far a rollout may go and how many workers there should be, as steps of StatefulSets. Pure.

scaling.py and rollout.py decide; here their inputs are put together from what was observed, and
their answers, which count workers, become pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pd_operator import names, rollout, scaling
from pd_operator.conditions import Judgement, no, unknown, yes
from pd_operator.desired import initial_pods
from pd_operator.drain import Drain, drain
from pd_operator.fleet import Fleet
from pd_operator.growth import (
    Loads,
    devices,
    is_builtin,
    is_external,
    scaling_spec,
    sizes_seen,
)
from pd_operator.objects.meta import digest
from pd_operator.objects.workers import pairing_hash, template_hash
from pd_operator.observed import Observed, Pod, Workload, dominant, seconds
from pd_operator.quantity import share
from pd_operator.resource import Resource
from pd_operator.roster import crews, fleet_of

SCALING_S = 15.0
"""Between two decisions of the Builtin scaler."""
ROLLING_S = 30.0
"""Between two looks at a rollout in which nothing seems to happen."""
DRAINING_S = 3.0
"""Between two looks at workers that finish their work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleStep:
    """What is to be done to one role's StatefulSet, in pods."""

    partition: int = 0
    pods: int | None = None
    """Its replicas; None leaves them to someone else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """What the next decisions need to know of earlier ones. Losing it costs no safety."""

    progress: rollout.Progress | None = None
    history: scaling.History = field(default_factory=scaling.History)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Of both roles."""

    steps: Mapping[names.Role, RoleStep]
    wanted: Mapping[names.Role, int]
    """Workers, without a surge."""
    templates: Mapping[names.Role, str]
    """Hash of each role's wanted pod template."""
    revision: str
    """Names both of them."""
    rollout: Judgement
    stalled: Judgement | None = None
    scaling: Judgement | None = None
    replaced: tuple[Pod, ...] = ()
    """Pods to delete: old ones that serve nobody."""
    drains: Mapping[names.Role, Drain] = field(default_factory=dict)
    again_after_s: float = float("inf")
    thread: Thread = field(default_factory=Thread)


def decide(
    resource: Resource, observed: Observed, loads: Loads | None, thread: Thread, now: float
) -> Decisions:
    """The next step of each role. `loads`: None where nobody asks the workers. `now` is in seconds
    since the epoch."""
    hashes = {role: template_hash(resource, role) for role in names.ROLES}
    revision = digest(sorted(hashes.items()))
    if resource.spec.suspend:
        return _suspended(hashes, revision)
    sizes, scaled, thread = _sizes(resource, observed, loads or {}, thread, now)
    goal = _goal(resource, sizes, revision)
    seen = rollout.Now(
        prefill=fleet_of(resource, observed, "prefill", hashes["prefill"], now),
        decode=fleet_of(resource, observed, "decode", hashes["decode"], now),
    )
    progress = thread.progress or _resumed(resource, revision, now)
    step = rollout.step(goal, seen, progress, now)
    steps = {"prefill": step.prefill, "decode": step.decode}
    fleets = {"prefill": seen.prefill, "decode": seen.decode}
    drains = {
        role: _drain(resource, observed, role, fleets[role], steps[role], loads, now)
        for role in names.ROLES
    }
    return Decisions(
        steps={
            role: _in_pods(resource, observed, role, steps[role], drains[role])
            for role in names.ROLES
        },
        wanted=sizes,
        templates=hashes,
        revision=revision,
        rollout=_told(step, observed),
        stalled=_stalled(step),
        scaling=scaled,
        replaced=tuple(
            pod for role in names.ROLES for pod in _replaced(resource, observed, role, steps[role])
        ),
        drains=drains,
        again_after_s=_again_after_s(resource, step, drains, now),
        thread=Thread(progress=step.progress, history=thread.history),
    )


def _suspended(hashes: Mapping[names.Role, str], revision: str) -> Decisions:
    return Decisions(
        steps={role: RoleStep(pods=0) for role in names.ROLES},
        wanted=dict.fromkeys(names.ROLES, 0),
        templates=hashes,
        revision=revision,
        rollout=no("Suspended", "spec.suspend is set"),
    )


def _sizes(
    resource: Resource, observed: Observed, loads: Loads, thread: Thread, now: float
) -> tuple[dict[names.Role, int], Judgement | None, Thread]:
    """Workers of each role without a surge, what to tell of scaling, and the scaler's memory."""
    sizes = {role: _present_size(resource, observed, role) for role in names.ROLES}
    builtin = [role for role in names.ROLES if is_builtin(resource, role)]
    if not builtin:
        return sizes, _scaled_by_others(resource), thread
    surge = sum(_surge(resource, observed, role, sizes) for role in names.ROLES)
    decision = scaling.decide(
        scaling_spec(resource, sizes, surge),
        sizes_seen(resource, observed, sizes, loads),
        thread.history,
        now,
    )
    decided = {"prefill": decision.prefill, "decode": decision.decode}
    for role in builtin:
        sizes[role] = decided[role].replicas
    told = [(role, decided[role]) for role in builtin]
    return sizes, _scaling(told), Thread(progress=thread.progress, history=decision.history)


def _present_size(resource: Resource, observed: Observed, role: names.Role) -> int:
    """The spec's replicas, or where the role is scaled what its scaler has made of them."""
    part, workload = resource.role(role), observed.workloads.get(role)
    initial = initial_pods(resource, role) // part.nodes_per_worker
    if part.autoscaling is None or workload is None or _left_at_zero(workload):
        return initial
    workers = workload.replicas // part.nodes_per_worker
    stored = (resource.status.get(role) or {}).get("desired")
    if is_builtin(resource, role) and _rolling(resource) and stored:
        return min(int(stored), workers)  # the rest is a rollout's surge
    return workers if is_external(resource, role) else (workers or initial)


def _left_at_zero(workload: Workload) -> bool:
    """True where it was we who took all pods away, for a suspension that has ended."""
    ours = {names.FIELD_MANAGER, names.REPLICAS_MANAGER}
    return workload.replicas == 0 and not ours.isdisjoint(workload.replicas_owners)


def _rolling(resource: Resource) -> bool:
    stored = resource.status.get("conditions", [])
    return any(c["type"] == "RolloutComplete" and c["status"] != "True" for c in stored)


def _surge(
    resource: Resource, observed: Observed, role: names.Role, sizes: Mapping[names.Role, int]
) -> int:
    """Devices that a role holds above its size."""
    workload, nodes = observed.workloads.get(role), resource.role(role).nodes_per_worker
    above = workload.replicas // nodes - sizes[role] if workload else 0
    return max(above, 0) * devices(resource, role)


def _scaled_by_others(resource: Resource) -> Judgement | None:
    providers = sorted(
        {part.autoscaling.provider for part in map(resource.role, names.ROLES) if part.autoscaling}
    )
    return yes("ScaledByOthers", f"scaled by {', '.join(providers)}") if providers else None


def _scaling(decided: list[tuple[names.Role, scaling.RoleDecision]]) -> Judgement:
    """The roles' reasons. Their messages hold measured numbers, which would change at each look."""
    reasons = "; ".join(f"{role}: {decision.reason}" for role, decision in decided)
    worst = next((d for _, d in decided if not d.active), decided[0][1])
    clamped = next((d for _, d in decided if d.reason.endswith("Clamped")), worst)
    if worst.active:
        return yes(clamped.reason, reasons)
    return unknown(worst.reason, reasons)


def _goal(resource: Resource, sizes: Mapping[names.Role, int], revision: str) -> rollout.Goal:
    spec = resource.spec.rollout
    return rollout.Goal(
        prefill=_role_goal(resource, "prefill", sizes),
        decode=_role_goal(resource, "decode", sizes),
        revision=revision,
        strategy=spec.strategy,
        paused=spec.paused,
        budget=resource.spec.scaling.max_gpus,
        deadline_s=spec.progress_deadline_seconds,
    )


def _role_goal(
    resource: Resource, role: names.Role, sizes: Mapping[names.Role, int]
) -> rollout.RoleGoal:
    spec, size = resource.spec.rollout, sizes[role]
    return rollout.RoleGoal(
        replicas=size,
        key=pairing_hash(resource),
        max_surge=0 if is_external(resource, role) else share(spec.max_surge, size, up=True),
        max_unavailable=share(spec.max_unavailable, size),
        devices=devices(resource, role),
    )


def _resumed(resource: Resource, revision: str, now: float) -> rollout.Progress | None:
    """After a restart: what the status tells of the rollout."""
    stored = resource.conditions
    if resource.status.get("updateRevision") != revision or "RolloutComplete" not in stored:
        return None
    condition = stored["RolloutComplete"]
    since = seconds(condition["lastTransitionTime"]) or now
    done = condition["status"] == "True"
    return rollout.Progress(revision=revision, updated=0, since=since, done=done)


def _drain(
    resource: Resource,
    observed: Observed,
    role: names.Role,
    fleet: Fleet,
    step: rollout.RoleStep,
    loads: Loads | None,
    now: float,
) -> Drain:
    """How far the role may be lowered towards its step. Where others lower it, SIGTERM drains."""
    wanted = fleet.replicas if _left_alone(resource, observed, role) else step.replicas
    workers = crews(resource, observed, role).items()
    by_ordinal = None
    if loads is not None:
        by_ordinal = {
            ordinal: loads[pods[0].name] for ordinal, pods in workers if pods[0].name in loads
        }
    timeout_s = resource.role(role).drain_timeout_seconds
    return drain(fleet, wanted, by_ordinal, timeout_s=timeout_s, now=now)


def _left_alone(resource: Resource, observed: Observed, role: names.Role) -> bool:
    """True where someone else writes the replicas of the StatefulSet."""
    workload = observed.workloads.get(role)
    return is_external(resource, role) and workload is not None and not _left_at_zero(workload)


def _in_pods(
    resource: Resource,
    observed: Observed,
    role: names.Role,
    step: rollout.RoleStep,
    drained: Drain,
) -> RoleStep:
    nodes = resource.role(role).nodes_per_worker
    pods = None if _left_alone(resource, observed, role) else drained.replicas * nodes
    return RoleStep(partition=step.partition * nodes, pods=pods)


def _replaced(
    resource: Resource, observed: Observed, role: names.Role, step: rollout.RoleStep
) -> list[Pod]:
    found = crews(resource, observed, role)
    pods = [pod for ordinal in step.replaced for pod in found.get(ordinal, [])]
    return [pod for pod in pods if not pod.terminating]


def _told(step: rollout.Step, observed: Observed) -> Judgement:
    """With the reason of pods that do not start: a surge leaves the role itself complete."""
    if step.phase == "Complete":
        return yes("RolledOut", step.message)
    pods = [pod for role in names.ROLES for pod in observed.pods.get(role, ())]
    reason, message = dominant(pods)
    cause = "; ".join(part for part in (reason, message) if part)
    return no(step.reason, f"{step.message}; {cause}" if cause else step.message)


def _stalled(step: rollout.Step) -> Judgement | None:
    return yes(step.reason, step.message) if step.phase == "Stalled" else None


def _again_after_s(
    resource: Resource, step: rollout.Step, drains: Mapping[names.Role, Drain], now: float
) -> float:
    spec, waits = resource.spec.rollout, [float("inf")]
    if step.phase == "Progressing":
        left_s = step.progress.since + spec.progress_deadline_seconds - now
        waits += [ROLLING_S, max(left_s, 1.0), spec.min_ready_seconds or ROLLING_S]
    if any(is_builtin(resource, role) for role in names.ROLES):
        waits.append(SCALING_S)
    if any(each.waits for each in drains.values()):
        waits.append(DRAINING_S)
    return min(waits)

"""StatefulSets of both roles with their controller and kubelet, as far as a rollout sees them.

Parallel pod management and a partition. How many released pods the controller takes at a time
differs among versions of Kubernetes (see Pace); a rollout must be right with all of them. A
template is good or bad: pods of a bad one never become ready.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Literal

from pd_operator.fleet import Fleet, State, Worker
from pd_operator.rollout import Goal, Now, Progress, Step, step
from pd_operator.sizing import Size

Pace = Literal["one", "one of all", "eager"]
"""one: from the top, each when those above it are ready. one of all: only when all are ready.
eager: all of them at once."""
PACES: tuple[Pace, ...] = ("one", "one of all", "eager")
STARTUP, SHUTDOWN, GIVE_UP = 3, 2, 4
"""Ticks until ready, until gone, and until a bad pod counts as broken."""


@dataclass(frozen=True)
class Template:
    """What pods are made from."""

    name: str
    key: str
    good: bool = True


@dataclass(kw_only=True)
class Pod:
    uid: int
    ordinal: int
    template: Template
    age: int = 0
    dying: int | None = None
    """Ticks until it is gone."""
    placed: bool = True
    crashed: bool = False

    @property
    def state(self) -> State:
        if not self.placed:
            return "pending"
        if self.template.good and not self.crashed:
            return "ready" if self.age >= STARTUP else "starting"
        return "broken" if self.age >= GIVE_UP else "starting"

    @property
    def ready(self) -> bool:
        return self.state == "ready" and self.dying is None


@dataclass(kw_only=True)
class StatefulSet:
    template: Template
    replicas: int
    current: Template = field(init=False)
    """The template that pods below the partition are made from."""
    partition: int = 0
    pace: Pace = "one"
    pods: dict[int, Pod] = field(default_factory=dict)
    uids: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.current = self.template

    def fill(self, room: int) -> int:
        """Make the missing pods, of which `room` find a node; the room that remains."""
        for ordinal in range(self.replicas):
            if ordinal not in self.pods:
                template = self.template if ordinal >= self.partition else self.current
                self.pods[ordinal] = Pod(
                    uid=next(self.uids), ordinal=ordinal, template=template, placed=room > 0
                )
                room -= 1
        return room

    def tick(self) -> None:
        """One round of the controller and the kubelet."""
        for pod in list(self.pods.values()):
            pod.age += 1
            if pod.dying is not None:
                pod.dying -= 1
                if pod.dying <= 0:
                    del self.pods[pod.ordinal]
            elif pod.ordinal >= self.replicas:
                pod.dying = SHUTDOWN
        self._complete()
        for pod in self._due():
            pod.dying = SHUTDOWN

    def _due(self) -> list[Pod]:
        """The pods that the update takes now."""
        released = [self.pods.get(n) for n in range(self.replicas - 1, self.partition - 1, -1)]
        old = [p for p in released if p and p.template != self.template and p.dying is None]
        if self.pace == "eager":
            return old
        everyone = [self.pods.get(ordinal) for ordinal in range(self.replicas)]
        above = released[: released.index(old[0])] if old else []
        waited_for = everyone if self.pace == "one of all" else above
        return old[:1] if all(pod and pod.ready for pod in waited_for) else []

    def _complete(self) -> None:
        pods = list(self.pods.values())
        if len(pods) == self.replicas and all(
            pod.ready and pod.template == self.template for pod in pods
        ):
            self.current = self.template

    def observe(self, wanted: Template) -> Fleet:
        return Fleet(
            replicas=self.replicas,
            partition=self.partition,
            current=self.template == wanted,
            workers=tuple(
                Worker(
                    ordinal=pod.ordinal,
                    new=pod.template == wanted,
                    key=pod.template.key,
                    state=pod.state,
                    terminating=pod.dying is not None,
                )
                for pod in self.pods.values()
            ),
        )


class World:
    """Both StatefulSets, and an operator that rolls them towards a goal."""

    def __init__(
        self, goal: Goal, templates: tuple[Template, Template], *, nodes: int = 1000,
        pace: Pace = "one",
    ) -> None:  # fmt: skip
        self.goal, self.templates, self.nodes = goal, templates, nodes
        self.sets = [
            StatefulSet(template=template, replicas=role.replicas, pace=pace)
            for template, role in zip(templates, (goal.prefill, goal.decode), strict=True)
        ]
        self.progress: Progress | None = None
        self.clock = 0.0
        self.course: list[Size] = []
        """Pairs that served, tick by tick."""
        self.steps: list[Step] = []
        self.wait(STARTUP + 2)
        self.course.clear()
        self.steps.clear()

    def wait(self, ticks: int) -> None:
        for _ in range(ticks):
            self.tick()

    def settle(self, ticks: int = 400) -> Step:
        """Until the rollout is complete and every surge gone; fails when it takes longer."""
        for _ in range(ticks):
            last = self.tick()
            sizes = [fleet.replicas for fleet in self.sets]
            if last.phase == "Complete" and sizes == self.wanted and self.all_ready():
                return last
        raise AssertionError(f"not settled: {self.steps[-1]} {self.sets}")

    @property
    def wanted(self) -> list[int]:
        return [self.goal.prefill.replicas, self.goal.decode.replicas]

    def all_ready(self) -> bool:
        return all(
            len(fleet.pods) == fleet.replicas
            and all(p.ready and p.template == t for p in fleet.pods.values())
            for fleet, t in zip(self.sets, self.templates, strict=True)
        )

    def tick(self) -> Step:
        """The operator acts, then the cluster."""
        self.clock += 1
        decided = self.decide()
        self.steps.append(decided)
        steps = (decided.prefill, decided.decode)
        for fleet, template, role in zip(self.sets, self.templates, steps, strict=True):
            fleet.template = template
            fleet.replicas, fleet.partition = role.replicas, role.partition
            for ordinal in role.replaced:
                if fleet.pods[ordinal].dying is None:
                    fleet.pods[ordinal].dying = SHUTDOWN
        room = self.nodes - sum(pod.placed for fleet in self.sets for pod in fleet.pods.values())
        for fleet in self.sets:
            room = fleet.fill(max(room, 0))
            for pod in fleet.pods.values():
                if not pod.placed and room > 0:
                    pod.placed, pod.age, room = True, 0, room - 1
        for fleet in self.sets:
            fleet.tick()
        self.course.append(self.serving())
        return decided

    def decide(self) -> Step:
        now = Now(
            prefill=self.sets[0].observe(self.templates[0]),
            decode=self.sets[1].observe(self.templates[1]),
        )
        decided = step(self.goal, now, self.progress, self.clock)
        self.progress = decided.progress
        return decided

    def serving(self) -> Size:
        """Ready workers of each role that have a ready partner."""
        keys = [
            [pod.template.key for pod in fleet.pods.values() if pod.ready] for fleet in self.sets
        ]
        return Size(
            prefill=sum(key in keys[1] for key in keys[0]),
            decode=sum(key in keys[0] for key in keys[1]),
        )

    def uids(self) -> list[set[int]]:
        return [{pod.uid for pod in fleet.pods.values()} for fleet in self.sets]

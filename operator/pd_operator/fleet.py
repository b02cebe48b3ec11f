"""One role's workers as a rollout and a drain see them. Pure.

A worker is one pod, or the pods of one multi-node worker together; ordinals and partitions count
workers. An ordinal without a worker is a vacancy: whoever governs the StatefulSet fills it, from
the new revision at or above the partition and from the old one below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ready", "starting", "pending", "broken"]
"""pending: there is no node for it. broken: it will not become ready by itself (it crashes, its
image cannot be had, it took longer than it may)."""
UNKNOWN = ""
"""Pairing key of a worker that is yet to come from an old template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker as it is."""

    ordinal: int
    new: bool
    """Made from the wanted template."""
    key: str
    """Pairing key: it serves only together with a worker of the other role with an equal one."""
    state: State
    terminating: bool = False
    draining_since: float | None = None
    """When it was taken from the router so that it may go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A StatefulSet and its workers; the default is one that does not exist yet."""

    replicas: int = 0
    partition: int = 0
    current: bool = True
    """Its template is the wanted one, so that its partition says what has been released."""
    workers: tuple[Worker, ...] = ()

    @property
    def released(self) -> int:
        """Ordinals from here on may be new already."""
        return min(self.partition, self.replicas) if self.current else self.replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One ordinal: its worker, or what will come there."""

    ordinal: int
    new: bool
    key: str
    state: State

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    @property
    def hopeless(self) -> bool:
        return self.state in ("pending", "broken")

    @property
    def expected(self) -> bool:
        """It serves, or did so and will again: an old worker that starts once more."""
        return self.ready or (not self.new and self.state == "starting")


def slots(fleet: Fleet, key: str) -> tuple[Slot, ...]:
    """Every ordinal below the replicas; `key` is that of new workers."""
    living = {worker.ordinal: worker for worker in fleet.workers if not worker.terminating}
    return tuple(
        _slot(fleet, ordinal, living.get(ordinal), key) for ordinal in range(fleet.replicas)
    )


def _slot(fleet: Fleet, ordinal: int, worker: Worker | None, key: str) -> Slot:
    if worker is not None:
        return Slot(ordinal=ordinal, new=worker.new, key=worker.key, state=worker.state)
    new = ordinal >= fleet.released
    return Slot(ordinal=ordinal, new=new, key=key if new else UNKNOWN, state="starting")


def serving(own: Iterable[Slot], others: Iterable[Slot]) -> int:
    """How many of `own` serve: ready ones that have a ready partner among `others`."""
    partners = {slot.key for slot in others if slot.ready}
    return sum(slot.ready and slot.key in partners for slot in own)


def expected(own: Iterable[Slot], others: Iterable[Slot]) -> int:
    """How many of `own` serve or will do so again without anything being done."""
    partners = {slot.key for slot in others if slot.expected}
    return sum(slot.expected and may_pair(slot.key, partners) for slot in own)


def may_pair(key: str, partners: Collection[str]) -> bool:
    """True unless it is certain that none of the partners' keys equals this one."""
    return key in partners or (bool(partners) and (key == UNKNOWN or UNKNOWN in partners))

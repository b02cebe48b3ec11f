"""How a role gives up workers without a request noticing. Pure.

1. Those with the highest ordinals, which the StatefulSet would take, are taken from the router:
   marked with the time, from which their label follows (routing.py).
2. They finish their streams and transfers. One may go when its own metrics, read well after the
   routers have heard of it, say that nothing is left in it; or when its time is up.
3. The replicas follow, from the top. A worker drains once more by itself on SIGTERM, so that one
   that cannot be asked loses nothing either. Where nobody asks, step 2 lasts only until the
   routers have heard of it.

Whoever is wanted again before step 3 is given back to the router.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pd_operator.fleet import Fleet, Worker
from pd_operator.metrics import WorkerLoad

SETTLE_S = 5.0
"""Until all routers have heard of it, and what they sent before has arrived."""
SILENCE_S = 30.0
"""A worker that says nothing of itself for so long is left to its own drain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """What is to be done now; the default is nothing."""

    replicas: int = 0
    """Workers that the StatefulSet may be lowered to; never below the wanted ones."""
    mark: tuple[int, ...] = ()
    """Ordinals to take from the router."""
    unmark: tuple[int, ...] = ()
    """Ordinals to give back."""
    waits: bool = False
    """Some have work to finish."""


def drain(
    fleet: Fleet,
    wanted: int,
    loads: Mapping[int, WorkerLoad] | None,
    *,
    timeout_s: float,
    now: float,
) -> Drain:
    """The next step towards `wanted` workers; `loads` are the workers' latest, by ordinal; None
    where nobody asks them."""
    silence_s = SETTLE_S if loads is None else SILENCE_S
    heard = loads or {}
    living = {worker.ordinal: worker for worker in fleet.workers if not worker.terminating}
    replicas = max(fleet.replicas, wanted)
    while replicas > wanted:
        last = replicas - 1
        if not _may_go(living.get(last), heard.get(last), timeout_s, silence_s, now):
            break
        replicas -= 1
    marked = {ordinal for ordinal, worker in living.items() if worker.draining_since is not None}
    return Drain(
        replicas=replicas,
        mark=tuple(sorted(set(range(wanted, replicas)) & living.keys() - marked)),
        unmark=tuple(sorted(marked & set(range(wanted)))),
        waits=replicas > wanted,
    )


def _may_go(
    worker: Worker | None,
    load: WorkerLoad | None,
    timeout_s: float,
    silence_s: float,
    now: float,
) -> bool:
    if worker is None or worker.state != "ready":
        return True
    since = worker.draining_since
    if since is None:
        return timeout_s == 0
    if now - since >= timeout_s:
        return True
    if load is None or load.busy is None or load.at < since:
        return now - since >= silence_s
    return load.busy == 0 and load.at - since >= SETTLE_S

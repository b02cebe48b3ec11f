"""A queueing model of prefill and decode workers under load, for closed-loop tests.

A request first waits for decode's memory, then for prefill's compute, then decodes. Prefill works
through prompt tokens at a fixed rate a worker; decode's gap between tokens grows with its batch.
Arrivals are Poisson. Pods take time to start, and may find no node.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from pd_operator.metrics import WorkerLoad
from pd_operator.scaling import Decision, History, Observed, RoleObserved, ScalingSpec, decide
from pd_operator.sizing import Size

STEP_S = 3
INTERVAL_S = 15


@dataclass(kw_only=True)
class Machine:
    """What a worker can do."""

    prefill_tokens_s: float = 10_000.0
    kv_tokens: float = 100_000.0
    itl_base_s: float = 0.02
    itl_per_request_s: float = 0.0003
    startup_s: int = 90


@dataclass(kw_only=True)
class Pods:
    """One role's pods by the second at which they were started; None: no node for it."""

    started: list[float | None] = field(default_factory=list)

    def resize(self, replicas: int, now: float, room: int) -> None:
        """Add pods, or take the youngest away; `room` more find a node."""
        del self.started[replicas:]
        while len(self.started) < replicas:
            self.started.append(now if room > 0 else None)
            room -= 1

    def ready(self, now: float, startup_s: float) -> int:
        return sum(start is not None and now - start >= startup_s for start in self.started)

    @property
    def unschedulable(self) -> int:
        return self.started.count(None)

    @property
    def placed(self) -> int:
        return len(self.started) - self.unschedulable


class Fleet:
    """Both roles; time goes on in steps of STEP_S."""

    def __init__(
        self,
        size: Size,
        *,
        machine: Machine | None = None,
        prompt: float = 1000.0,
        output: float = 200.0,
        nodes: int = 10_000,
        seed: int = 0,
        knows_utilization: bool = True,
    ) -> None:
        self.machine = machine or Machine()
        self.prompt, self.output, self.nodes = prompt, output, nodes
        self.random = random.Random(seed)
        self.now = 0.0
        self.prefill, self.decode = Pods(), Pods()
        self.prefill.resize(size.prefill, -1e9, nodes)
        self.decode.resize(size.decode, -1e9, nodes - size.prefill)
        self.unplaced = self.waiting = self.decoding = 0.0
        self._prompt_tokens = self._output_tokens = self._since = 0.0
        self.knows_utilization = knows_utilization

    @property
    def size(self) -> Size:
        return Size(prefill=len(self.prefill.started), decode=len(self.decode.started))

    @property
    def backlog(self) -> float:
        """Requests that have not begun to decode."""
        return self.unplaced + self.waiting

    def ready(self) -> tuple[int, int]:
        startup = self.machine.startup_s
        return self.prefill.ready(self.now, startup), self.decode.ready(self.now, startup)

    def resize(self, size: Size) -> None:
        room = self.nodes - self.prefill.placed - self.decode.placed
        before = self.prefill.placed
        self.prefill.resize(size.prefill, self.now, room)
        self.decode.resize(size.decode, self.now, room - max(self.prefill.placed - before, 0))

    def step(self, requests_s: float) -> None:
        """STEP_S seconds of load."""
        prefills, decodes = self.ready()
        self.now += STEP_S
        self.unplaced += self._poisson(requests_s * STEP_S)
        each = self.prompt + self.output
        room = decodes * self.machine.kv_tokens / each - self.waiting - self.decoding
        placed = min(self.unplaced, max(room, 0.0))
        computed = min(
            self.waiting + placed, STEP_S * prefills * self.machine.prefill_tokens_s / self.prompt
        )
        tokens = STEP_S * self.decoding / self.itl(decodes) if decodes else 0.0
        tokens = min(tokens, self.decoding * self.output)
        self._prompt_tokens += computed * self.prompt
        self._output_tokens += tokens
        self.unplaced -= placed
        self.waiting += placed - computed
        self.decoding = max(self.decoding + computed - tokens / self.output, 0.0)

    def itl(self, decodes: int) -> float:
        batch = self.decoding / max(decodes, 1)
        return self.machine.itl_base_s + self.machine.itl_per_request_s * batch

    def _poisson(self, mean: float) -> float:
        if mean > 30:
            return max(round(self.random.gauss(mean, math.sqrt(mean))), 0)
        count, left = 0, self.random.expovariate(1.0)
        while left < mean:
            count, left = count + 1, left + self.random.expovariate(1.0)
        return count

    def observe(self, noise: float = 0.0) -> Observed:
        """What the operator sees, with relative noise; rates are since the last look."""
        prefills, decodes = self.ready()
        seconds = max(self.now - self._since, 1.0)
        prompt_rate = self._prompt_tokens / seconds / max(prefills, 1)
        output_rate = self._output_tokens / seconds / max(decodes, 1)
        self._prompt_tokens = self._output_tokens = 0.0
        self._since = self.now
        return Observed(
            prefill=self._role(self.prefill, prefills, self._prefill_load(prompt_rate), noise),
            decode=self._role(self.decode, decodes, self._decode_load(output_rate), noise),
        )

    def _prefill_load(self, rate: float) -> dict[str, float]:
        workers = max(self.ready()[0], 1)
        service = self.prompt / self.machine.prefill_tokens_s
        wait = self.backlog / (workers / service)
        load = {
            "queue": self.waiting / workers,
            "ttft_s": service + wait,
            "prompt_tokens_s": rate,
        }
        if self.knows_utilization:
            load["utilization"] = rate / self.machine.prefill_tokens_s
        return load

    def _decode_load(self, rate: float) -> dict[str, float]:
        workers = max(self.ready()[1], 1)
        held = (self.waiting + self.decoding) * (self.prompt + self.output) / workers
        return {
            "kv_usage": min(held / self.machine.kv_tokens, 1.0),
            "itl_s": self.itl(workers),
            "running": self.decoding / workers,
            "transfer_queue": self.waiting / workers,
            "prealloc_queue": self.unplaced / workers,
            "output_tokens_s": rate,
        }

    def _role(self, pods: Pods, ready: int, load: dict[str, float], noise: float) -> RoleObserved:
        def noisy() -> WorkerLoad:
            return WorkerLoad(
                at=self.now,
                **{k: v * (1 + self.random.uniform(-noise, noise)) for k, v in load.items()},
            )

        return RoleObserved(
            replicas=len(pods.started),
            ready=ready,
            starting=len(pods.started) - ready - pods.unschedulable,
            unschedulable=pods.unschedulable,
            loads=tuple(noisy() for _ in range(ready)),
        )


@dataclass(kw_only=True)
class Run:
    """A closed loop's course: one entry a decision."""

    fleet: Fleet
    sizes: list[Size] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    backlogs: list[float] = field(default_factory=list)

    def reasons(self, role: str) -> set[str]:
        return {getattr(decision, role).reason for decision in self.decisions}

    def turns(self, role: str, since_s: float = 0.0) -> int:
        """How often the role's size changed its direction."""
        sizes = [getattr(size, role) for size in self.sizes[int(since_s / INTERVAL_S) :]]
        steps = [b - a for a, b in pairwise(sizes) if a != b]
        return sum(a * b < 0 for a, b in pairwise(steps))


def run(
    fleet: Fleet,
    spec: ScalingSpec,
    load: Callable[[float], float],
    seconds: int,
    *,
    noise: float = 0.0,
    scrape: Callable[[float, Observed], Observed] = lambda _, observed: observed,
) -> Run:
    """Let `decide` govern the fleet under `load` (requests a second by time)."""
    course, history = Run(fleet=fleet), History()
    for second in range(STEP_S, seconds + 1, STEP_S):
        fleet.step(load(fleet.now))
        if second % INTERVAL_S == 0:
            observed = scrape(fleet.now, fleet.observe(noise))
            decision = decide(spec, observed, history, fleet.now)
            history = decision.history
            fleet.resize(Size(prefill=decision.prefill.replicas, decode=decision.decode.replicas))
            course.decisions.append(decision)
            course.sizes.append(fleet.size)
            course.backlogs.append(fleet.backlog)
    return course

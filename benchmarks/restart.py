"""The operator is started again where everything exists: what that costs it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.contenders import NAMESPACE, Operator
from benchmarks.stand import Counts, Stand, calm, kinds_of, reads, until
from benchmarks.usage import Meter, memory_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What it cost to start an operator where everything exists. Seconds since its start."""

    objects: int
    leads_s: float
    first_look_s: float
    changed_s: float
    """To its write for the deployment that was edited while it was down."""
    all_looked_s: float
    """Every deployment has been looked at once."""
    cpu_first_look_s: float
    cpu_s: float
    """Until everything has been looked at."""
    memory_mib: float
    peak_mib: float
    writes_changed: Counts
    writes_others: Counts
    """For deployments that nobody changed; should be none."""
    reads: Counts


def restart(place: Stand, operator: Operator, numbers: range) -> Restart:
    """Stop the operator, edit one deployment, start it again, wait until it has seen all."""
    operator.stop()
    changed = f"pair-{numbers[len(numbers) // 2]:05}"
    patch = '{"spec": {"router": {"port": 9000}}}'
    target = ("pddeployment", changed, "-n", NAMESPACE)
    place.client.kubectl("patch", *target, "--type=merge", "-p", patch)
    operator.elected = True
    began = time.time()
    operator.launch()
    with Meter({operator.user: operator.pid}) as meter:
        first = until(lambda: operator.looks >= 1)
        last = until(lambda: operator.looks >= len(numbers))
        calm(place, operator)
    memory, peak = memory_mib(operator.pid)
    writes = place.audit.writes(operator.user, began)
    own = [each for each in writes if each.name.startswith(changed) or not each.name]
    leases = place.audit.select(
        operator.user, lambda r: r.resource == "leases" and r.at > began and r.code in (200, 201)
        and r.verb in ("create", "update")
    )  # fmt: skip
    return Restart(
        objects=len(numbers),
        leads_s=leases[0].at - began,
        first_look_s=first - began,
        changed_s=min(each.at for each in own if each.name) - began,
        all_looked_s=last - began,
        cpu_first_look_s=meter.between(operator.user, 0.0, first),
        cpu_s=meter.between(operator.user, 0.0, last),
        memory_mib=memory,
        peak_mib=peak,
        writes_changed=kinds_of(own),
        writes_others=kinds_of([each for each in writes if each not in own]),
        reads=kinds_of(reads(place, operator, began)),
    )

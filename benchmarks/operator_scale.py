"""The operator with very many deployments, beside LeaderWorkerSet's controller in the same run.

    python -m benchmarks.operator_scale --deployments 1000 --restart 5000 --lws

Control planes are real (tests/cluster), there are no nodes: pods stay Pending. docs/benchmarks.md
has figures and what they mean.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from benchmarks.contenders import Contender, LeaderWorkerSets, Operator
from benchmarks.creation import Creation, Silence, create, silence
from benchmarks.figures import (
    counts,
    creation_figures,
    restart_figures,
    silence_figures,
    table,
)
from benchmarks.restart import restart
from benchmarks.stand import Stand, stand

Results = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Measure the operator at scale."""

    deployments: int = 1000
    """Pairs that are created: one prefill, one decode and one router each."""
    restart: int = 5000
    """Deployments that exist when the operator is started again; 0 leaves that out. Those beyond
    `deployments` have no pods: two cores hold no 15,000."""
    lws: bool = False
    """Have LeaderWorkerSet's controller make as many pairs, on a control plane of its own."""
    quiet_s: float = 60.0
    """How long a settled controller is watched."""
    controllers_per_s: int = 500
    """Requests that each of Kubernetes' own controllers may do in a second. By their default of 20
    the benchmark would measure them."""
    json: Path | None = None
    """Write all numbers there."""


def main() -> None:
    """Run the command line."""
    options = tyro.cli(Options, prog="python -m benchmarks.operator_scale")
    results: Results = {"machine": machine()}
    print(f"{results['machine']}\n", flush=True)
    with stand(controllers_per_s=options.controllers_per_s) as place:
        operator = Operator(place.plane, place.client)
        results["pdserve"] = made = _make(place, operator, options)
        if options.restart:
            results["restart"] = _restart(place, operator, options)
    if options.lws:
        with stand(controllers_per_s=options.controllers_per_s) as place:
            lws = LeaderWorkerSets(place.plane, place.client)
            results["lws"] = _make(place, lws, options)
            print(table({"pdserve": _figures(made), "lws": _figures(results["lws"])}))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, default=asdict) + "\n")


def machine() -> str:
    """What it ran on, with the load of others before it began."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "CPU")
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return f"{os.cpu_count()} cores, {model}, load {os.getloadavg()[0]:.1f} before, {when}"


def _make(place: Stand, contender: Contender, options: Options) -> tuple[Creation, Silence]:
    contender.prepare()
    contender.start()
    made = create(place, contender, range(options.deployments))
    quiet = silence(place, contender, options.quiet_s)
    print(f"{contender.user}: {options.deployments} pairs\n")
    print(table({contender.user: _figures((made, quiet))}))
    print(f"\nwrites for one pair: {counts(made.writes, made.pairs)}")
    print(f"reads for one pair: {counts(made.reads, made.pairs)}")
    if made.own_count:
        print(f"writes by its own count: {made.own_count:.0f} of {sum(made.writes.values())}")
    print(f"writes in the silence: {quiet.writes or 'none'}\n", flush=True)
    return made, quiet


def _figures(made: tuple[Creation, Silence]) -> dict[str, float]:
    return {**creation_figures(made[0]), **silence_figures(made[1])}


def _restart(place: Stand, operator: Operator, options: Options) -> Results:
    more = range(options.deployments, options.restart)
    if more:
        create(place, operator, more, pods=False)
    again = restart(place, operator, range(max(options.deployments, options.restart)))
    print(f"restart\n\n{table({'pdserve': restart_figures(again)})}")
    print(f"\nwrites for the edited one: {again.writes_changed}")
    print(f"reads: {again.reads}\n", flush=True)
    return asdict(again)


if __name__ == "__main__":
    main()

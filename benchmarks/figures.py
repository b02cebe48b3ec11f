"""The figures of the operator's scale benchmark as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import quantiles

from benchmarks.creation import Creation, Silence
from benchmarks.restart import Restart

Figures = dict[str, float]


def creation_figures(made: Creation) -> Figures:
    """What a creation cost."""
    figures = {
        "first request to all children applied, s": made.applied_s,
        "of that, until the last request, s": made.create_s,
        "controller's CPU to all applied, s": made.cpu_applied_s,
        "controller's CPU until it settled, s": made.cpu_settled_s,
        "the same for one pair, ms": 1000 * made.cpu_settled_s / made.pairs,
    }
    figures |= {f"{part}'s CPU meanwhile, s": cpu for part, cpu in made.parts_cpu_s.items()}
    figures |= {
        "writes for one pair": sum(made.writes.values()) / made.pairs,
        "reads for one pair": sum(made.reads.values()) / made.pairs,
        "controller's resident memory, MiB": made.memory_mib,
    }
    figures |= _percentiles("request to last child, s", made.to_applied)
    return figures | _percentiles("request to first status, s", made.to_status)


def silence_figures(quiet: Silence) -> Figures:
    """What a controller did in a time in which there was nothing to do."""
    return {
        f"writes in {quiet.seconds:g} s of silence": sum(quiet.writes.values()),
        "reads in it (watches that are renewed)": sum(quiet.reads.values()),
        "controller's CPU in it, s": quiet.cpu_s,
    }


def restart_figures(again: Restart) -> Figures:
    """What a restart cost."""
    return {
        "objects": again.objects,
        "start to leading, s": again.leads_s,
        "start to first look, s": again.first_look_s,
        "start to the write for the edited one, s": again.changed_s,
        "start to all looked at, s": again.all_looked_s,
        "CPU to first look, s": again.cpu_first_look_s,
        "CPU to all looked at, s": again.cpu_s,
        "resident memory, MiB": again.memory_mib,
        "resident memory at its peak, MiB": again.peak_mib,
        "writes for the edited one": sum(again.writes_changed.values()),
        "writes for the others": sum(again.writes_others.values()),
        "reads": sum(again.reads.values()),
    }


def table(columns: Mapping[str, Figures]) -> str:
    """A column for each; with two of them, the first as a multiple of the second."""
    both = len(columns) == 2
    heads = ["", *columns, *(["ratio"] if both else [])]
    lines = [_row(heads), _row(["---"] * len(heads))]
    for name in dict.fromkeys(name for figures in columns.values() for name in figures):
        values = [figures.get(name) for figures in columns.values()]
        cells = [name, *map(_cell, values)]
        if both:
            first, second = values
            cells.append(_cell(first / second) if first is not None and second else "–")
        lines.append(_row(cells))
    return "\n".join(lines)


def counts(requests: Mapping[str, int], pairs: int) -> str:
    """Requests by verb and resource, for one pair."""
    return ", ".join(f"{kind} {number / pairs:.3g}" for kind, number in requests.items())


def _percentiles(name: str, seconds: Sequence[float]) -> Figures:
    if len(seconds) < 2:
        return {}
    cuts = quantiles(seconds, n=100, method="inclusive")
    return {f"{name}: p{p}": cuts[p - 1] for p in (50, 95, 99)} | {f"{name}: max": max(seconds)}


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"

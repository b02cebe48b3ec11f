"""Results of `pdserve bench serve` as a table, a JSON file and a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pd_worker.bench.stats import QUANTILES, Record, Row, Summary, ratios

Results = Mapping[str, Mapping[str, Summary]]
"""URL of the server, then group of requests."""


def table(results: Results) -> str:
    """Every group of every server and, where there are two, how they compare."""
    lines: list[str] = []
    for url, groups in results.items():
        for group, summary in groups.items():
            lines += ["", f"{url}  {group}: {_headline(summary)}"]
            lines += _rows(summary.latencies, "ms", ".1f")
    if len(results) == 2:
        measured, baseline = results.values()
        for group, summary in measured.items():
            lines += ["", f"{group}: how many times lower than the baseline"]
            lines += _rows(ratios(baseline[group], summary), "×", ".2f")
    return "\n".join(lines[1:])


def _headline(summary: Summary) -> str:
    return (
        f"{summary.requests} requests, {summary.errors} errors, {summary.output_tokens} tokens "
        f"in {summary.seconds:.1f} s ({summary.tokens_per_s:.1f} tokens/s)"
    )


def _rows(latencies: Mapping[str, Row], unit: str, form: str) -> list[str]:
    lines = [f"  {'':<13}" + "".join(f"{name:>10}" for name in QUANTILES)]
    for name, row in latencies.items():
        cells = (f"{row[q]:{form}}" if q in row else "-" for q in QUANTILES)
        lines.append(f"  {name + ' ' + unit:<13}" + "".join(f"{cell:>10}" for cell in cells))
    return lines


def write_json(path: Path, settings: Mapping[str, Any], results: Results) -> None:
    """Settings and all numbers; latencies in milliseconds."""
    servers = {
        url: {group: asdict(summary) for group, summary in groups.items()}
        for url, groups in results.items()
    }
    path.write_text(json.dumps({"settings": dict(settings), "servers": servers}, indent=2) + "\n")


def write_plot(path: Path, records: Mapping[str, Sequence[Record]]) -> bool:
    """A curve for each named group: share of ITL gaps that are longer than x. False where
    matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, group in records.items():
        gaps = sorted(1000 * gap for record in group for gap in record.gaps)
        axes.step(gaps, [1 - index / len(gaps) for index in range(len(gaps))], label=name)
    axes.set(xscale="log", yscale="log", xlabel="ITL, ms", ylabel="share of gaps longer than this")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    return True

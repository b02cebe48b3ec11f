"""Draws where the time of one request went, as text. Pure.

leg      stage       |0                          1200 ms|
prefill  queue       |█                                 |     4 ms
         prefill     | ██████▓▓▓▓▓▓                     |   280 ms  2 chunks
decode   transfer    |██████████████                    |   300 ms
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

SHADES = "█▓"
LEGS = ("router", "", "prefill", "decode")
LABEL = 22
NUMBERS = 32
"""Columns right of the bars."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a request as the router passes it on. Times are Unix time in seconds."""

    name: str
    start: float
    end: float
    detail: str = ""
    leg: str = ""
    """router, prefill or decode; empty where one worker did all."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """One request as its client saw it. Times are Unix time in seconds."""

    sent: float
    first_token: float
    end: float
    output_tokens: int
    steps: Sequence[Step]

    @property
    def span(self) -> float:
        """Seconds that the picture is wide; never 0."""
        return max(self.end - self.sent, 1e-6)


def draw(timeline: Timeline, width: int) -> str:
    """The picture, at most `width` columns wide: a row for each stage of each leg."""
    cells = max(width - LABEL - NUMBERS, 20)
    lines, last_leg = [_axis(timeline, cells)], ""
    for steps in _rows(timeline.steps):
        leg = steps[0].leg if steps[0].leg != last_leg else ""
        last_leg = steps[0].leg
        lines.append(f"{leg:<9}{_row(timeline, steps, cells)}")
    lines += [_first_token(timeline, cells), "", summary(timeline)]
    return "\n".join(line[:width].rstrip() for line in lines)


def summary(timeline: Timeline) -> str:
    """One line: time to the first token, then time per token."""
    first = _time(timeline.first_token - timeline.sent)
    text = f"first token after {first}, {timeline.output_tokens} tokens in {_time(timeline.span)}"
    if timeline.output_tokens < 2:
        return text
    each = (timeline.end - timeline.first_token) / (timeline.output_tokens - 1)
    return f"{text}, {_time(each)} a token after the first"


def _rows(steps: Sequence[Step]) -> list[list[Step]]:
    """Steps that share a row, leg by leg, each leg in the order of time."""
    rows: dict[tuple[int, str], list[Step]] = {}
    for step in sorted(steps, key=lambda step: step.start):
        leg = LEGS.index(step.leg) if step.leg in LEGS else len(LEGS)
        rows.setdefault((leg, step.name), []).append(step)
    return [rows[key] for key in sorted(rows, key=lambda key: key[0])]


def _axis(timeline: Timeline, cells: int) -> str:
    end = _time(timeline.span)
    return f"{'':<{LABEL}}|{'0':<{cells - len(end)}}{end}|"


def _row(timeline: Timeline, steps: Sequence[Step], cells: int) -> str:
    bar = [" "] * cells
    for index, step in enumerate(steps):
        low = min(_cell(timeline, step.start, cells), cells - 1)
        high = max(_cell(timeline, step.end, cells), low + 1)
        bar[low:high] = SHADES[index % len(SHADES)] * (high - low)
    took = _time(sum(step.end - step.start for step in steps))
    unit = "chunks" if steps[0].name == "prefill" else "times"
    detail = f"{len(steps)} {unit}" if len(steps) > 1 else steps[0].detail
    return f"{steps[0].name[:12]:<13}|{''.join(bar)}| {took:>9}  {detail}"


def _first_token(timeline: Timeline, cells: int) -> str:
    at = min(_cell(timeline, timeline.first_token, cells), cells - 1)
    took = "at " + _time(timeline.first_token - timeline.sent)
    return f"{'client   first token':<{LABEL}}|{' ' * at}◆{' ' * (cells - at - 1)}| {took:>9}"


def _cell(timeline: Timeline, moment: float, cells: int) -> int:
    """Border between columns, 0 … cells, nearest to a moment; outside the picture its edge."""
    return min(max(round((moment - timeline.sent) / timeline.span * cells), 0), cells)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 10 else f"{seconds * 1000:.0f} ms"

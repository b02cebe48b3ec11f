"""Draws where the time of one request went, as text. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from pd_worker.messages import Stage

SHADES = "█▓"
LABEL = 13


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One request as its client saw it. Times are Unix time in seconds."""

    sent: float
    first_token: float
    end: float
    output_tokens: int
    stages: Sequence[Stage]

    @property
    def span(self) -> float:
        """Seconds that the picture is wide; never 0."""
        return max(self.end - self.sent, 1e-6)


def draw(timeline: Timeline, width: int) -> str:
    """The picture, at most `width` columns wide: a row for each stage, chunks in one row."""
    cells = max(width - LABEL - 36, 20)
    ordered = sorted(timeline.stages, key=lambda stage: (stage.start, stage.end))
    groups = [list(group) for _, group in groupby(ordered, key=lambda stage: stage.name)]
    rows = [(group[0].start, _row(timeline, group, cells)) for group in groups]
    rows.append((timeline.first_token, _first_token(timeline, cells)))
    lines = [_axis(timeline, cells), *(text for _, text in sorted(rows)), "", summary(timeline)]
    return "\n".join(line[:width].rstrip() for line in lines)


def summary(timeline: Timeline) -> str:
    """One line: time to the first token, then time per token."""
    first = timeline.first_token - timeline.sent
    text = (
        f"first token after {_ms(first)}, {timeline.output_tokens} tokens in {_ms(timeline.span)}"
    )
    if timeline.output_tokens < 2:
        return text
    each = (timeline.end - timeline.first_token) / (timeline.output_tokens - 1)
    return f"{text}, {_ms(each)} a token after the first"


def _axis(timeline: Timeline, cells: int) -> str:
    end = _ms(timeline.span)
    return f"{'':<{LABEL}}|{'0':<{cells - len(end)}}{end}|"


def _row(timeline: Timeline, stages: Sequence[Stage], cells: int) -> str:
    bar = [" "] * cells
    for index, stage in enumerate(stages):
        low = min(_cell(timeline, stage.start, cells), cells - 1)
        high = max(_cell(timeline, stage.end, cells), low + 1)
        bar[low:high] = SHADES[index % len(SHADES)] * (high - low)
    took = _ms(sum(stage.end - stage.start for stage in stages))
    details = [stage.detail for stage in stages if stage.detail]
    detail = details[0] if len(stages) == 1 and details else ""
    detail = f"{len(stages)} chunks" if len(stages) > 1 else detail
    return f"{stages[0].name[: LABEL - 1]:<{LABEL}}|{''.join(bar)}| {took:>9}  {detail}"


def _first_token(timeline: Timeline, cells: int) -> str:
    at = min(_cell(timeline, timeline.first_token, cells), cells - 1)
    took = _ms(timeline.first_token - timeline.sent)
    return f"{'first token':<{LABEL}}|{' ' * at}◆{' ' * (cells - at - 1)}| {'at ' + took:>9}"


def _cell(timeline: Timeline, moment: float, cells: int) -> int:
    """Border between columns, 0 … cells, nearest to a moment; outside the picture its edge."""
    return min(max(round((moment - timeline.sent) / timeline.span * cells), 0), cells)


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 10 else f"{seconds * 1000:.0f} ms"

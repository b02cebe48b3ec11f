"""The picture of where one request's time went."""

from __future__ import annotations

import pytest

from pd_worker.messages import Stage
from pd_worker.timeline import Timeline, draw, summary

T0 = 1_000_000.0


def timeline(*stages: Stage, first: float = 0.4, tokens: int = 11) -> Timeline:
    return Timeline(
        sent=T0, first_token=T0 + first, end=T0 + 1.0, output_tokens=tokens, stages=stages
    )


def stage(name: str, start: float, end: float, detail: str = "") -> Stage:
    return Stage(name, T0 + start, T0 + end, detail)


def labels(picture: str) -> list[str]:
    rows = picture.split("\n\n")[0].splitlines()[1:]
    return [row.split("|")[0].strip() for row in rows]


def test_rows_come_in_the_order_of_time() -> None:
    picture = draw(
        timeline(stage("decode", 0.4, 1.0), stage("queue", 0.0, 0.1), stage("prefill", 0.1, 0.3)),
        100,
    )
    assert labels(picture) == ["queue", "prefill", "decode", "first token"]


def test_chunks_share_a_row_and_stay_apart() -> None:
    picture = draw(timeline(stage("prefill", 0.0, 0.2), stage("prefill", 0.2, 0.4)), 100)
    row = picture.splitlines()[1]
    assert "█▓" in row
    assert row.endswith("400 ms  2 chunks")


def test_bar_begins_and_ends_where_the_stage_does() -> None:
    bar = draw(timeline(stage("transfer", 0.5, 1.0)), 149).splitlines()[2].split("|")[1]
    assert bar == " " * 50 + "█" * 50


def test_shortest_stage_is_still_seen() -> None:
    assert "█" in draw(timeline(stage("transfer", 0.5, 0.5)), 80)


def test_stage_outside_the_picture_goes_to_its_edge() -> None:
    picture = draw(timeline(stage("queue", -5.0, -4.0), stage("decode", 3.0, 9.0)), 80)
    assert len(picture.splitlines()) == 6


@pytest.mark.parametrize("width", [60, 80, 120])
def test_picture_is_no_wider_than_asked(width: int) -> None:
    picture = draw(timeline(stage("prefill", 0, 1, "a very long detail " * 9)), width)
    assert all(len(line) <= width for line in picture.splitlines()[:-1])


def test_summary_gives_first_token_and_time_per_token() -> None:
    text = summary(timeline())
    assert text == "first token after 400 ms, 11 tokens in 1000 ms, 60 ms a token after the first"


def test_summary_of_one_token_has_no_time_per_token() -> None:
    assert "a token after" not in summary(timeline(tokens=1))

"""The picture of where one request's time went."""

from __future__ import annotations

import pytest

from pd_worker.timeline import Step, Timeline, draw, summary

T0 = 1_000_000.0


def timeline(*steps: Step, first: float = 0.4, tokens: int = 11) -> Timeline:
    return Timeline(
        sent=T0, first_token=T0 + first, end=T0 + 1.0, output_tokens=tokens, steps=steps
    )


def step(name: str, start: float, end: float, detail: str = "", leg: str = "") -> Step:
    return Step(name=name, start=T0 + start, end=T0 + end, detail=detail, leg=leg)


def labels(picture: str) -> list[str]:
    rows = picture.split("\n\n")[0].splitlines()[1:]
    return [" ".join(row.split("|")[0].split()) for row in rows]


def test_rows_come_leg_by_leg_in_the_order_of_time() -> None:
    picture = draw(
        timeline(
            step("decode", 0.4, 1.0, leg="decode"),
            step("transfer", 0.0, 0.4, leg="decode"),
            step("prefill", 0.1, 0.3, leg="prefill"),
            step("queue", 0.05, 0.1, leg="prefill"),
            step("dispatch", 0.02, 0.03, leg="router"),
        ),
        100,
    )
    assert labels(picture) == [
        "router dispatch",
        "prefill queue",
        "prefill",
        "decode transfer",
        "decode",
        "client first token",
    ]


def test_chunks_share_a_row_and_stay_apart() -> None:
    picture = draw(timeline(step("prefill", 0.0, 0.2), step("prefill", 0.2, 0.4)), 100)
    row = picture.splitlines()[1]
    assert "█▓" in row
    assert row.endswith("400 ms  2 chunks")


def test_bar_begins_and_ends_where_the_stage_does() -> None:
    bar = draw(timeline(step("transfer", 0.5, 1.0)), 154).splitlines()[1].split("|")[1]
    assert bar == " " * 50 + "█" * 50


def test_shortest_stage_is_still_seen() -> None:
    assert "█" in draw(timeline(step("transfer", 0.5, 0.5)), 80)


def test_stage_outside_the_picture_goes_to_its_edge() -> None:
    picture = draw(timeline(step("queue", -5.0, -4.0), step("decode", 3.0, 9.0)), 80)
    assert [row.split("|")[1].strip() for row in picture.splitlines()[1:3]] == ["█", "█"]


@pytest.mark.parametrize("width", [74, 80, 120])
def test_picture_is_no_wider_than_asked(width: int) -> None:
    picture = draw(timeline(step("prefill", 0, 1, "a very long detail " * 9)), width)
    assert max(map(len, picture.splitlines())) <= width


def test_summary_gives_first_token_and_time_per_token() -> None:
    text = summary(timeline())
    assert text == "first token after 400 ms, 11 tokens in 1000 ms, 60 ms a token after the first"


def test_summary_of_one_token_has_no_time_per_token() -> None:
    assert "a token after" not in summary(timeline(tokens=1))

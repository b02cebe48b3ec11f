"""Incremental text and stop strings."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_worker.api.choice import Choice
from pd_worker.api.detokenizer import StopFinder, TextStream
from pd_worker.api.tokenizer import Tokenizer
from pd_worker.core.sampling_params import SamplingParams
from pd_worker.messages import Finish, Output


def pieces(tokenizer: Tokenizer, ids: list[int], *, skip: bool = True) -> list[str]:
    stream = TextStream(lambda window: tokenizer.decode(window, skip_special_tokens=skip))
    return [*(stream.push(token) for token in ids), stream.flush()]


def run(
    tokenizer: Tokenizer, outputs: list[Output], sampling: SamplingParams
) -> tuple[Choice, list[str]]:
    choice = Choice(0, sampling, tokenizer, stop_strings=True)
    texts = []
    for output in outputs:
        texts.append(choice.feed(output).text)
        if choice.tally.finish:
            break
    return choice, texts


def outputs(ids: list[int], cuts: list[int], finish: Finish) -> list[Output]:
    """The ids in batches that end at the cuts; the last one finishes."""
    borders = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    batches = [ids[a:b] for a, b in pairwise(borders)] or [[]]
    return [
        Output(rid="r", token_ids=batch, finish=finish if index == len(batches) - 1 else None)
        for index, batch in enumerate(batches)
    ]


@given(text=st.text(max_size=200))
def test_pieces_of_any_text_join_to_it(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(pieces(tokenizer, ids, skip=False)) == tokenizer.decode(
        ids, skip_special_tokens=False
    )


@given(ids=st.lists(st.integers(0, 330), max_size=60), skip=st.booleans())
def test_pieces_of_any_tokens_join_to_their_text(
    tokenizer: Tokenizer, ids: list[int], skip: bool
) -> None:
    assert "".join(pieces(tokenizer, ids, skip=skip)) == tokenizer.decode(
        ids, skip_special_tokens=skip
    )


def test_an_incomplete_character_is_held_until_it_is_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("😀")
    assert len(ids) > 1
    assert pieces(tokenizer, ids) == [""] * (len(ids) - 1) + ["😀", ""]


def test_an_incomplete_character_at_the_end_is_a_replacement(tokenizer: Tokenizer) -> None:
    assert pieces(tokenizer, tokenizer.encode("😀")[:-1])[-1] == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("text", ["hello world ", "\ufffd"], ids=["words", "garbage"])
def test_cost_is_linear_in_the_tokens(tokenizer: Tokenizer, text: str) -> None:
    def seconds(count: int) -> float:
        ids = (tokenizer.encode(text) * count)[:count]
        began = time.perf_counter()
        pieces(tokenizer, ids)
        return time.perf_counter() - began

    seconds(200)
    assert seconds(8000) < 40 * seconds(800)


@given(
    text=st.text("ab", max_size=30),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    cuts=st.lists(st.integers(1, 29), max_size=8),
    include=st.booleans(),
)
def test_the_result_does_not_depend_on_the_pieces(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    def result(parts: list[str]) -> tuple[str, str | None]:
        finder, given_out = StopFinder(stops, include=include), ""
        for part in parts:
            certain, stop = finder.push(part)
            given_out += certain
            if stop:
                return given_out, stop
        return given_out + finder.flush(), None

    borders = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    parts = [text[a:b] for a, b in pairwise(borders)]
    assert result(parts) == result(list(text)) == result([text])


@pytest.mark.parametrize(
    ("include", "text"), [(False, "one "), (True, "one stop")], ids=["without", "with"]
)
def test_a_stop_string_ends_the_text(include: bool, text: str) -> None:
    finder = StopFinder(["stop"], include=include)
    assert finder.push("one st") == ("one ", None)
    before = "" if not include else "stop"
    assert finder.push("op two") == (before, "stop")
    assert "one " + before == text


def test_before_min_tokens_a_stop_string_is_text() -> None:
    finder = StopFinder(["ab"], include=False)
    assert finder.push("xab", armed=False) == ("xab", None)
    assert finder.push("b", armed=True) == ("b", None)
    assert finder.push("ab", armed=True) == ("", "ab")


def test_tokens_after_the_one_that_completed_a_stop_string_are_dropped(
    tokenizer: Tokenizer,
) -> None:
    ids = tokenizer.encode("hello") + tokenizer.encode("!!") + tokenizer.encode("world")
    output = Output(rid="r", token_ids=ids, logprobs=[-1.0] * len(ids), finish=Finish("length"))
    choice, _ = run(tokenizer, [output], SamplingParams(stop=("!",)))
    count = len(tokenizer.encode("hello")) + 1
    assert choice.tally.text == "hello"
    assert choice.tally.token_ids == ids[:count]
    assert len(choice.tally.logprobs) == count
    assert (choice.tally.finish, choice.tally.matched) == (Finish("stop"), "!")


@given(
    ids=st.lists(st.integers(0, 330), max_size=40),
    cuts=st.lists(st.integers(1, 39), max_size=6),
    stops=st.lists(st.text("he lo", min_size=1, max_size=3), max_size=2),
    min_new=st.integers(0, 10),
)
def test_batches_of_tokens_do_not_change_text_counts_or_finish(
    tokenizer: Tokenizer, ids: list[int], cuts: list[int], stops: list[str], min_new: int
) -> None:
    sampling = SamplingParams(stop=tuple(stops), min_new_tokens=min_new)
    one, texts = run(tokenizer, outputs(ids, cuts, Finish("length")), sampling)
    whole, _ = run(tokenizer, outputs(ids, [], Finish("length")), sampling)
    assert "".join(texts) == one.tally.text == whole.tally.text
    assert one.tally.token_ids == whole.tally.token_ids
    assert one.tally.finish == whole.tally.finish


@pytest.mark.parametrize(
    ("include", "text"), [(False, "hi"), (True, "hi!")], ids=["trimmed", "kept"]
)
def test_the_text_of_a_matched_stop_token_is_trimmed(
    tokenizer: Tokenizer, include: bool, text: str
) -> None:
    stop = tokenizer.encode("!")
    output = Output(
        rid="r",
        token_ids=tokenizer.encode("hi") + stop,
        finish=Finish("stop", matched=stop[0]),
    )
    choice, _ = run(tokenizer, [output], SamplingParams(include_stop=include))
    assert choice.tally.text == text
    assert choice.tally.token_ids == output.token_ids
    assert choice.tally.matched == stop[0]


def test_prefill_leaves_stop_strings_to_decode(tokenizer: Tokenizer) -> None:
    choice = Choice(0, SamplingParams(stop=("h",)), tokenizer, stop_strings=False)
    choice.feed(Output(rid="r", token_ids=tokenizer.encode("h")))
    assert choice.tally.finish is None

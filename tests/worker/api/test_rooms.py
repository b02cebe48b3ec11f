"""Bootstrap fields → rooms."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_worker.api.rooms import MAX_ROOM, recover_bootstraps, sample_bootstraps, sample_room
from pd_worker.api.schema import BootstrapFields
from pd_worker.errors import InvalidRequest

ROOMS = st.integers(1, MAX_ROOM)


def fields(host: Any = "p", port: Any = 8998, room: Any = 5) -> BootstrapFields:
    return BootstrapFields(bootstrap_host=host, bootstrap_port=port, bootstrap_room=room)


def rooms(prompts: int = 1, n: int = 1, **given: Any) -> list[int]:
    found = sample_bootstraps(fields(**given), prompts=prompts, n=n, default_port=1)
    return [bootstrap.room for bootstrap in found]


@given(room=ROOMS)
def test_rooms_of_samples_are_valid_distinct_and_the_first_is_the_room(room: int) -> None:
    drawn = [sample_room(room, index) for index in range(128)]
    assert drawn[0] == room
    assert len(set(drawn)) == 128
    assert all(1 <= value <= MAX_ROOM for value in drawn)


def test_the_rule_never_changes() -> None:
    # Both legs compute it, maybe from different releases.
    assert sample_room(1, 1) == 1227844342346046657
    assert sample_room(MAX_ROOM, 5) == 5990184416167851723


def test_a_scalar_room_is_spread_over_prompts_and_samples() -> None:
    assert rooms(2, 3) == [sample_room(5, index) for index in range(6)]


def test_of_a_list_each_room_is_spread_over_its_samples() -> None:
    assert rooms(2, 2, room=[5, "9"]) == [5, sample_room(5, 1), 9, sample_room(9, 1)]


def test_a_list_of_one_room_a_sample_is_taken_as_it_is() -> None:
    assert rooms(1, 2, host=["p", "p"], port=[1, 1], room=[5, 6]) == [5, 6]
    assert rooms(2, 2, room=[5, 6, 7, 8]) == [5, 6, 7, 8]


def test_hosts_and_ports_may_be_lists_too() -> None:
    given_fields = fields(host=["p", "q"], port=[1, None], room=[5, 6])
    found = sample_bootstraps(given_fields, prompts=2, n=1, default_port=8998)
    assert [(b.host, b.port, b.room) for b in found] == [("p", 1, 5), ("q", 8998, 6)]


@pytest.mark.parametrize(
    ("given_fields", "param"),
    [
        ({"room": 0}, "bootstrap_room"),
        ({"room": -1}, "bootstrap_room"),
        ({"room": 2**63}, "bootstrap_room"),
        ({"room": "x"}, "bootstrap_room"),
        ({"room": "²"}, "bootstrap_room"),
        ({"room": None}, "bootstrap_room"),
        ({"room": [5, 6, 7]}, "bootstrap_room"),
        ({"room": [5, 5]}, "bootstrap_room"),
        ({"port": 0}, "bootstrap_port"),
        ({"port": "65536"}, "bootstrap_port"),
        ({"host": ""}, "bootstrap_host"),
        ({"host": None}, "bootstrap_host"),
        ({"host": "a b"}, "bootstrap_host"),
        ({"host": "a" * 300}, "bootstrap_host"),
    ],
    ids=str,
)
def test_bad_fields_are_refused_by_name(given_fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rooms(2, 1, **given_fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"bootstrap_host": "p", "bootstrap_room": 5}, [5]),
        ({"bootstrap_host": "p", "bootstrap_room": 5, "n": 2}, [5, sample_room(5, 1)]),
        ({"bootstrap_host": "p", "bootstrap_room": 5, "n": 10**9}, [5]),
        ({"bootstrap_host": "p", "bootstrap_room": [5, 6], "prompt": 3}, [5, 6]),
        (
            {"bootstrap_host": "p", "bootstrap_room": 5, "prompt": ["a", "b"]},
            [5, sample_room(5, 1)],
        ),
        ({"bootstrap_host": "p", "bootstrap_room": 5, "input_ids": [1, 2]}, [5]),
        ({"bootstrap_host": "p", "bootstrap_room": [5, 6], "n": 2}, [5, 6]),
        ({"bootstrap_host": "p", "bootstrap_room": {}}, []),
        ({"bootstrap_host": 3, "bootstrap_room": 5}, []),
        ({}, []),
    ],
    ids=str,
)
def test_rooms_of_a_refused_body_are_recovered(body: dict[str, Any], expected: list[int]) -> None:
    assert [bootstrap.room for bootstrap in recover_bootstraps(body, 8998)] == expected

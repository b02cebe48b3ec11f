"""The three laws of KVPoll."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pd_worker.errors import InvalidRequest
from pd_worker.transfer.poll import TERMINAL, KVPoll, RoomTable, advance, agree
from pd_worker.transfer.recent import Recent

states = st.integers(KVPoll.Failed, KVPoll.Success)
histories = st.lists(states, max_size=12)


def run(history: list[int]) -> int:
    state = KVPoll.Bootstrapping
    for new in history:
        state = advance(state, new)
    return state


@given(history=histories, later=histories)
def test_terminal_states_absorb(history: list[int], later: list[int]) -> None:
    state = run(history)
    if state in TERMINAL:
        assert run(history + later) == state


@given(history=histories)
def test_the_first_terminal_report_decides(history: list[int]) -> None:
    terminal = [state for state in history if state in TERMINAL]
    expected = terminal[0] if terminal else max([KVPoll.Bootstrapping, *history])
    assert run(history) == expected


@given(current=states, new=states)
def test_live_states_never_go_back(current: int, new: int) -> None:
    assert advance(current, new) >= current or new == KVPoll.Failed


@given(polls=st.lists(states, min_size=1))
def test_a_group_is_as_far_as_its_last_rank(polls: list[int]) -> None:
    assert agree(polls) == min(polls)


@pytest.mark.parametrize("state", [0, 2, 3, 4])
def test_only_open_starts_a_room(state: int) -> None:
    table = RoomTable(lambda: None)
    assert not table.update(1, state)
    assert table.outcome(1) is None


def test_only_clear_ends_a_room() -> None:
    table = RoomTable(lambda: None)
    table.open(1)
    table.update(1, KVPoll.Failed, "why")
    assert len(table) == 1
    table.clear(1)
    assert len(table) == 0
    assert (table.poll(1), table.failure(1)) == (KVPoll.Failed, "why")


def test_a_room_is_not_opened_twice_nor_soon_again() -> None:
    table = RoomTable(lambda: None)
    table.open(1)
    with pytest.raises(InvalidRequest, match="taken"):
        table.open(1)
    table.clear(1)
    with pytest.raises(InvalidRequest, match="taken"):
        table.open(1)


@pytest.mark.parametrize("room", [0, -1, 2**63, 2**80])
def test_room_numbers_out_of_range_are_refused(room: int) -> None:
    with pytest.raises(InvalidRequest, match="range"):
        RoomTable(lambda: None).open(room)


def test_every_change_wakes_and_repetitions_do_not() -> None:
    wakes: list[None] = []
    table = RoomTable(lambda: wakes.append(None))
    table.open(1)
    for state in (KVPoll.WaitingForInput, KVPoll.WaitingForInput, KVPoll.Success, KVPoll.Failed):
        table.update(1, state)
    assert len(wakes) == 2


def test_exactly_one_of_many_threads_decides() -> None:
    table = RoomTable(lambda: None)
    for room in range(1, 51):
        table.open(room)
        won: list[bool] = []
        threads = [
            threading.Thread(target=lambda s=s, w=won, r=room: w.append(table.update(r, s)))
            for s in (KVPoll.Failed, KVPoll.Success) * 4
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(won) == 1


def test_recent_forgets_by_number_and_by_age() -> None:
    now = [0.0]
    recent: Recent[str] = Recent(2, ttl_s=10.0, clock=lambda: now[0])
    assert recent.put(1, "a") == []
    now[0] = 5.0
    recent.put(2, "b")
    assert recent.put(3, "c") == [(1, "a")]
    now[0] = 15.5
    assert recent.get(2) is None
    assert recent.expire() == [(2, "b"), (3, "c")]
    assert len(recent) == 0

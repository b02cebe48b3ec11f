"""Held pages come back on the writer's word or death, never by time."""

from __future__ import annotations

from pd_worker.transfer.links import Link
from pd_worker.transfer.mailbox import Endpoint
from pd_worker.transfer.quarantine import Quarantine

DAY_S = 86400.0


def link(incarnation: str = "a") -> Link:
    return Link(server=Endpoint("h", 1), endpoint=Endpoint("h", 2), incarnation=incarnation)


def held(*rooms: int, writer: Link | None = None) -> Quarantine:
    quarantine = Quarantine()
    for room in rooms:
        quarantine.hold(room, writer or link(), 4, now=0.0)
    return quarantine


def test_time_alone_releases_nothing() -> None:
    quarantine = held(1, 2)
    assert quarantine.release(DAY_S) == []
    assert quarantine.num_pages == 8


def test_the_writers_word_releases_its_room() -> None:
    quarantine = held(1, 2)
    quarantine.acknowledged(1, "a", due=0.0)
    assert quarantine.release(0.0) == [1]
    assert len(quarantine) == 1


def test_anothers_word_releases_nothing() -> None:
    quarantine = held(1)
    quarantine.acknowledged(1, "b", due=0.0)
    assert quarantine.release(DAY_S) == []


def test_a_broken_write_settles_first() -> None:
    quarantine = held(1)
    quarantine.acknowledged(1, "a", due=10.0)
    assert quarantine.release(9.9) == []
    assert quarantine.release(10.0) == [1]


def test_a_dead_writer_releases_its_rooms_and_no_others() -> None:
    dead = link("dead")
    quarantine = held(1, 2, writer=dead)
    quarantine.hold(3, link("alive"), 1, now=0.0)
    quarantine.writer_ended(dead, due=1.0)
    assert quarantine.release(1.0) == [1, 2]
    assert quarantine.num_pages == 1


def test_silent_writers_are_asked_again_and_again() -> None:
    quarantine = held(1)
    assert quarantine.unanswered(0.5, patience_s=1.0) == []
    assert [h.room for h in quarantine.unanswered(1.0, patience_s=1.0)] == [1]
    assert quarantine.unanswered(1.5, patience_s=1.0) == []
    quarantine.acknowledged(1, "a", due=DAY_S)
    assert quarantine.unanswered(9.0, patience_s=1.0) == []

"""Lists and watches keep the store equal to the cluster, whatever happens to them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest

from pd_operator import cluster as cluster_module
from pd_operator import reflector as reflector_module
from pd_operator.cluster import Cluster
from pd_operator.kinds import ALWAYS
from pd_operator.reflector import Reflector, Scope
from pd_operator.resource import Key
from pd_operator.store import Store
from tests.operator.client.conftest import Script, hang_up, page, service, status

SERVICES = ALWAYS[2]
KEY = Key("llm", "m")
Follow = Callable[[], Reflector]


class Names:
    """The names in the store, with waiting for them."""

    def __init__(self) -> None:
        self.store = Store()
        self.changed = asyncio.Event()
        self.told: list[Key] = []

    def tell(self, key: Key) -> None:
        self.told.append(key)
        self.changed.set()

    async def become(self, *names: str) -> None:
        async with asyncio.timeout(5):
            while set(self.store.of(KEY, SERVICES)) != set(names):
                self.changed.clear()
                await self.changed.wait()


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@pytest.fixture
async def names() -> Names:
    return Names()


@pytest.fixture
async def follow(
    cluster: Cluster, names: Names, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Follow]:
    monkeypatch.setattr(reflector_module, "FIRST_PAUSE_S", 0.001)
    tasks = []

    def start() -> Reflector:
        reflector = Reflector(cluster, names.store, Scope(kind=SERVICES), names.tell)
        tasks.append(asyncio.create_task(reflector.run()))
        return reflector

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_lists_then_follows(script: Script, names: Names, follow: Follow) -> None:
    script.replies = [page(service("a"))]
    reflector = follow()
    await names.become("a")
    assert reflector.listed.is_set()
    script.tell("ADDED", service("b", 2))
    await names.become("a", "b")
    script.tell("DELETED", service("a", 3))
    await names.become("b")
    assert set(names.told) == {KEY}


async def test_a_watch_that_ends_goes_on_from_the_last_bookmark(
    script: Script, names: Names, follow: Follow
) -> None:
    script.replies = [page(service("a"))]
    follow()
    await names.become("a")
    script.tell("BOOKMARK", service("", 9))
    script.end_watch()
    script.tell("ADDED", service("b", 10))
    await names.become("a", "b")
    assert [query.get("resourceVersion") for _, _, query, _ in script.seen] == [None, "1", "9"]


async def test_a_silent_watch_is_opened_anew_without_a_list(
    script: Script, names: Names, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "SILENCE_S", 0.05)
    monkeypatch.setattr(reflector_module, "AT_ONCE_S", 0.0)
    script.replies = [page(service("a"))]
    reflector = follow()
    await names.become("a")
    listed_at = reflector.seen_at
    await until(lambda: len(script.seen) >= 4)
    assert [("watch" in query) for _, _, query, _ in script.seen] == [False, True, True, True]
    assert reflector.seen_at > listed_at + 0.1


async def test_a_watch_that_ends_at_once_is_asked_ever_more_slowly(
    script: Script, names: Names, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector_module, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(reflector_module, "LONGEST_PAUSE_S", 0.3)
    script.replies = [page(service("a"))]
    for _ in range(8):
        script.end_watch()
    follow()
    began = time.monotonic()
    await until(lambda: len(script.seen) == 10)  # a list and nine watches, the last of which lasts
    assert time.monotonic() - began > 0.5


async def test_gone_inside_a_watch_lists_anew_and_misses_no_deletion(
    script: Script, names: Names, follow: Follow
) -> None:
    script.replies = [page(service("a"), service("b")), page(service("b"), version=20)]
    follow()
    await names.become("a", "b")
    script.tell("ERROR", {"code": 410, "message": "too old resource version"})
    await names.become("b")


async def test_gone_as_an_answer_lists_anew(script: Script, names: Names, follow: Follow) -> None:
    script.replies = [page(more="next"), status(410), page(service("a"))]
    follow()
    await names.become("a")


@pytest.mark.parametrize(
    "fault", [status(503), status(403), hang_up], ids=["503", "forbidden", "reset"]
)
async def test_faults_are_outlived(
    script: Script, names: Names, follow: Follow, fault: object
) -> None:
    script.replies = [fault] * 9 + [page(service("a"))]  # type: ignore[assignment]
    follow()
    await names.become("a")


async def test_an_older_event_changes_nothing(script: Script, names: Names, follow: Follow) -> None:
    script.replies = [page(service("a", 5))]
    follow()
    await names.become("a")
    script.tell("MODIFIED", service("a", 4))
    script.tell("ADDED", service("b", 6))
    await names.become("a", "b")
    assert names.store.of(KEY, SERVICES)["a"]["metadata"]["resourceVersion"] == "5"

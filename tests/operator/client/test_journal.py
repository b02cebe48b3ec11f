"""Events as the API server takes them."""

from __future__ import annotations

import json
from dataclasses import replace

from pd_operator.cluster import Cluster
from pd_operator.journal import Journal
from pd_operator.status import News
from tests.operator.builders import resource
from tests.operator.client.conftest import Script, status


async def test_a_note_is_cut_to_the_bytes_that_fit(cluster: Cluster, script: Script) -> None:
    script.replies = [{"kind": "Event"}]
    news = News(type="Warning", reason="CrashLooping", message="解凍に失敗 " * 200)
    assert await Journal(cluster, "test").tell(resource(), news)
    [(method, path, _, body)] = script.seen
    assert (method, path) == ("POST", "/apis/events.k8s.io/v1/namespaces/llm/events")
    note = json.loads(body)["note"]
    assert news.message.startswith(note)
    assert 990 <= len(note.encode()) <= 1024


async def test_an_event_that_is_refused_stops_nothing(cluster: Cluster, script: Script) -> None:
    script.replies = [status(403)]
    news = News(type="Normal", reason="RolledOut", message="done")
    assert not await Journal(cluster, "test").tell(resource(), news)


async def test_a_reason_is_given_once_a_minute_for_each_deployment(
    cluster: Cluster, script: Script
) -> None:
    script.replies = [{"kind": "Event"}]
    now = 0.0
    journal, made = Journal(cluster, "test", lambda: now), resource()
    other = replace(made, uid="another")
    written = []
    for now in (0.0, 1.0, 59.0, 60.0, 61.0, 119.0, 120.0):
        for each, reason in ((made, "NoWorkers"), (made, "AllAvailable"), (other, "NoWorkers")):
            news = News(type="Normal", reason=reason, message=f"at {now}")
            written += [now] if await journal.tell(each, news) else []
    assert written == [0.0] * 3 + [60.0] * 3 + [120.0] * 3
    assert len(script.seen) == len(written)
    assert len(journal._told) == 3  # what is past is not kept


async def test_an_event_that_failed_counts_for_nothing(cluster: Cluster, script: Script) -> None:
    script.replies = [status(503), {"kind": "Event"}]
    journal = Journal(cluster, "test", lambda: 0.0)
    news = News(type="Warning", reason="NoWorkers", message="none")
    assert [await journal.tell(resource(), news) for _ in range(3)] == [False, True, False]

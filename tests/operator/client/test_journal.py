"""Events as the API server takes them."""

from __future__ import annotations

import json

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

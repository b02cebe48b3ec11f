"""The API client: what it sends, what it makes of errors, what it tries again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from pd_operator import cluster as cluster_module
from pd_operator.cluster import Cluster
from pd_operator.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    Refused,
    Unreachable,
)
from pd_operator.kinds import ALWAYS, PDDEPLOYMENT, POD, STATEFUL_SET
from tests.operator.client.conftest import Script, hang_up, page, service, status

SERVICES = ALWAYS[2]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(cluster_module, "LONGEST_PAUSE_S", 0.01)


async def test_apply_is_server_side_with_one_manager(cluster: Cluster, script: Script) -> None:
    script.replies = [service("s", 5)]
    live = await cluster.apply(service("s"), "someone", force=False)
    assert live["metadata"]["resourceVersion"] == "5"
    [(method, path, query, body)] = script.seen
    assert (method, path) == ("PATCH", "/api/v1/namespaces/llm/services/s")
    assert query == {"fieldManager": "someone", "force": "false"}
    assert json.loads(body) == service("s")


async def test_status_is_applied_to_its_subresource(cluster: Cluster, script: Script) -> None:
    script.replies = [{}]
    body = {
        "apiVersion": PDDEPLOYMENT.api_version,
        "kind": "PDDeployment",
        "metadata": {"namespace": "llm", "name": "m"},
    }
    await cluster.apply(body, "someone", subresource="status")
    assert script.seen[0][1] == "/apis/pdserve.io/v1alpha1/namespaces/llm/pddeployments/m/status"


@pytest.mark.parametrize(
    ("code", "error"),
    [(400, Refused), (401, Forbidden), (403, Forbidden), (404, NotFound), (409, Conflict),
     (410, Gone), (422, Refused), (405, Refused)],
)  # fmt: skip
async def test_refusals_have_their_own_error_and_are_not_tried_again(
    cluster: Cluster, script: Script, code: int, error: type[ApiError]
) -> None:
    script.replies = [status(code, "the reason")]
    with pytest.raises(error, match="the reason") as caught:
        await cluster.get(POD, "llm", "p")
    assert caught.value.status == code
    assert len(script.seen) == 1


@pytest.mark.parametrize(
    "fault",
    [status(503), status(500), status(429, "slow", **{"Retry-After": "0"}), hang_up],
    ids=["503", "500", "429", "reset"],
)
async def test_faults_of_the_moment_are_tried_again(
    cluster: Cluster, script: Script, fault: Any
) -> None:
    script.replies = [fault, fault, service("s")]
    assert (await cluster.get(SERVICES, "llm", "s"))["metadata"]["name"] == "s"


async def test_lasting_faults_end(cluster: Cluster, script: Script) -> None:
    script.replies = [status(503, "overloaded")]
    with pytest.raises(Unreachable, match="overloaded"):
        await cluster.get(SERVICES, "llm", "s")
    assert len(script.seen) == cluster_module.ATTEMPTS


async def test_create_is_not_tried_again(cluster: Cluster, script: Script) -> None:
    script.replies = [hang_up]
    with pytest.raises(Unreachable):
        await cluster.create(SERVICES, service("s"))
    assert len(script.seen) == 1


async def test_list_takes_all_pages(cluster: Cluster, script: Script) -> None:
    script.replies = [page(service("a"), version=3, more="x"), page(service("b"), version=3)]
    items, version = await cluster.list(SERVICES, "llm", "a=b")
    assert [item["metadata"]["name"] for item in items] == ["a", "b"]
    assert version == "3"
    assert script.seen[0][2]["labelSelector"] == "a=b"
    assert script.seen[1][2]["continue"] == "x"


async def test_list_whose_pages_expired_is_gone(cluster: Cluster, script: Script) -> None:
    script.replies = [page(more="x"), status(410)]
    with pytest.raises(Gone):
        await cluster.list(SERVICES)


async def test_watch_tells_events_until_it_ends(cluster: Cluster, script: Script) -> None:
    script.tell("ADDED", service("a", 2))
    script.tell("BOOKMARK", service("", 3))
    script.end_watch()
    seen = [(kind, value["metadata"]["name"]) async for kind, value in cluster.watch(SERVICES, "1")]
    assert seen == [("ADDED", "a"), ("BOOKMARK", "")]
    query = script.seen[0][2]
    assert query["resourceVersion"] == "1"
    assert 0 < int(query["timeoutSeconds"]) <= 600


@pytest.mark.parametrize(("code", "error"), [(410, Gone), (500, Unreachable), (403, Forbidden)])
async def test_errors_inside_a_watch_are_raised(
    cluster: Cluster, script: Script, code: int, error: type[ApiError]
) -> None:
    script.tell("ERROR", {"code": code, "message": "so"})
    with pytest.raises(error):
        [each async for each in cluster.watch(SERVICES, "1")]


@pytest.mark.parametrize(
    "line",
    [["ADDED"], {"type": "ADDED"}, {"object": service("a", 2)}, {"type": "ADDED", "object": "a"},
     {"type": "ADDED", "object": {}}, {"type": "BOOKMARK", "object": {"metadata": None}}],
    ids=["list", "no object", "no type", "text", "no metadata", "no version"],
)  # fmt: skip
async def test_a_line_of_a_watch_that_is_none_is_a_fault_of_the_moment(
    cluster: Cluster, script: Script, line: Any
) -> None:
    script.tell("ADDED", service("a", 2))
    script.events.put_nowait(line)
    watch = cluster.watch(SERVICES, "1")
    assert (await anext(watch))[0] == "ADDED"
    with pytest.raises(Unreachable):
        await anext(watch)


async def test_a_silent_watch_ends(
    cluster: Cluster, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_module, "SILENCE_S", 0.2)
    opened: list[bool] = []
    watch = cluster.watch(SERVICES, "1", opened=lambda: opened.append(True))
    assert [each async for each in watch] == []
    assert opened == [True]


async def test_answers_that_are_no_json_are_faults_of_the_moment(
    cluster: Cluster, script: Script
) -> None:
    script.replies = [web.Response(body=b'{"metadata": '), service("s")]
    assert (await cluster.get(SERVICES, "llm", "s"))["metadata"]["name"] == "s"


@pytest.mark.parametrize("proxied", [True, False])
async def test_the_proxy_of_the_environment_is_used(
    cluster: Cluster, script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxied: bool
) -> None:
    here = (await cluster.access()).server
    server = "http://cluster.invalid" if proxied else here
    monkeypatch.setenv("http_proxy", here if proxied else "http://proxy.invalid")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    context = {"cluster": "c", "user": "u"}
    config = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": context}],
        "current-context": "x",
    }
    (tmp_path / "config").write_text(json.dumps(config))
    script.replies = [service("s")]
    connected = await Cluster.connect(tmp_path / "config")
    assert (await connected.get(SERVICES, "llm", "s"))["metadata"]["name"] == "s"
    await connected.close()


async def test_delete_is_of_one_incarnation_and_may_come_late(
    cluster: Cluster, script: Script
) -> None:
    script.replies = [status(404)]
    await cluster.delete(STATEFUL_SET, "llm", "s", "the-uid")
    assert json.loads(script.seen[0][3])["preconditions"] == {"uid": "the-uid"}


async def test_knows_only_served_kinds(cluster: Cluster, script: Script) -> None:
    script.replies = [{"resources": [{"name": "pddeployments"}]}, status(404)]
    assert await cluster.knows(PDDEPLOYMENT)
    assert not await cluster.knows(PDDEPLOYMENT)


async def test_asks_for_permission_as_it_will_act(cluster: Cluster, script: Script) -> None:
    script.replies = [{"status": {"allowed": True}}]
    assert await cluster.may("patch", STATEFUL_SET, "llm", "scale")
    asked = json.loads(script.seen[0][3])["spec"]["resourceAttributes"]
    assert asked == {
        "verb": "patch", "group": "apps", "resource": "statefulsets",
        "subresource": "scale", "namespace": "llm",
    }  # fmt: skip

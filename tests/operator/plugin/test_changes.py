"""`diff`, `scale`, `rollout undo` and `logs`: what is decided before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from pd_operator import revisions
from pd_operator.desired import Choices
from pd_operator.errors import InvalidSpec
from pd_operator.plugin.changes import consequences, lines
from pd_operator.plugin.sizes import sizes
from pd_operator.plugin.trace import trace
from tests.operator.builders import deployment, resource

ROLE = {"gpus": 0, "replicas": 2}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({}, ["no worker is replaced"]),
        (
            {"engine": {"image": "worker:2"}},
            ["old and new workers will not pair: both roles are rolled out in step"],
        ),
        (
            {"prefill": {"gpus": 0, "args": ["--chunked-prefill-size=64"]}},
            ["the workers of prefill are replaced, one after the other"],
        ),
        ({"decode": ROLE | {"replicas": 5}}, ["no worker is replaced", "decode: 2 → 5 workers"]),
        ({"suspend": True}, ["no worker is replaced", "all workers go"]),
        (
            {"decode": {"gpus": 0, "replicas": 3, "autoscaling": {"maxReplicas": 4}}},
            [
                "no worker is replaced",
                "decode: replicas changes nothing, as the operator scales the role",
            ],
        ),
    ],
    ids=["nothing", "image", "one role", "size", "suspend", "size of a scaled role"],
)
def test_consequences(spec, told):
    assert list(consequences(resource(), resource(**spec))) == told


def test_diff_shows_the_changed_line_of_the_changed_object():
    found = list(lines(resource(), resource(engine={"image": "worker:2"}), Choices()))
    assert [line for line in found if "image:" in line and line[0] in "+-"] == [
        "-          image: worker:1",
        "+          image: worker:2",
    ] * 3
    assert not list(lines(resource(), resource(), Choices()))


def test_new_deployment_is_all_additions():
    assert all(line[0] in "+@-" for line in lines(None, resource(), Choices()))
    assert list(consequences(None, resource())) == ["it is new: everything is made"]


def test_scale_writes_only_what_is_given():
    assert sizes(resource(), {"prefill": 3, "decode": None}) == {"prefill": {"replicas": 3}}


@pytest.mark.parametrize(
    ("wanted", "spec", "told"),
    [
        ({"prefill": None, "decode": None}, {}, "nothing to do"),
        ({"prefill": -1, "decode": None}, {}, "negative"),
        ({"prefill": 0, "decode": None}, {}, "no use without each other"),
        (
            {"prefill": 3, "decode": None},
            {"prefill": {"gpus": 0, "autoscaling": {"maxReplicas": 4}}},
            "scaled by the operator between 1 and 4",
        ),
        (
            {"prefill": 3, "decode": None},
            {"prefill": {"gpus": 0, "autoscaling": {"provider": "HPA", "maxReplicas": 4}}},
            "kubectl scale statefulset m-prefill",
        ),
    ],
    ids=["nothing", "negative", "half", "builtin", "hpa"],
)
def test_scale_refuses_what_would_not_do_what_is_meant(wanted, spec, told):
    with pytest.raises(InvalidSpec, match=told):
        sizes(resource(**spec), wanted)


def revision(number: int, **spec: Any) -> dict[str, Any]:
    body = deployment(**spec)
    return revisions.revision(resource(**spec), body["spec"], f"mark{number}", number)


def test_going_back_restores_workers_and_leaves_sizes_and_limits():
    then = deployment(engine={"image": "worker:0"}, prefill=ROLE, rollout={"maxSurge": 3})["spec"]
    scaling = {"maxReplicas": 9}
    now = deployment(
        prefill={"gpus": 1, "replicas": 7, "autoscaling": scaling}, rollout={"paused": True}
    )["spec"]
    spec = revisions.restored(now, then)
    assert spec["engine"] == {"image": "worker:0"}
    assert spec["prefill"] == {"gpus": 0, "replicas": 7, "autoscaling": scaling}
    assert spec["rollout"] == {"paused": True}


def test_without_a_number_it_goes_one_back():
    found = [revision(3), revision(1), revision(2)]
    assert revisions.earlier(found, 0)["revision"] == 2
    assert revisions.earlier(found, 1)["revision"] == 1


@pytest.mark.parametrize(("count", "number"), [(0, 0), (1, 0), (2, 9)])
def test_no_way_back_says_what_there_is(count, number):
    with pytest.raises(InvalidSpec, match="known: "):
        revisions.earlier([revision(i + 1) for i in range(count)], number)


def test_only_so_many_revisions_are_kept():
    found = [revision(i) for i in (4, 1, 3, 2)]
    assert [each["revision"] for each in revisions.surplus(found, 1)] == [1, 2]
    assert revisions.surplus(found, 5) == []
    assert revisions.next_number(found) == 5


def test_revisions_are_no_workload_of_the_operator():
    labels = revision(1)["metadata"]["labels"]
    assert "app.kubernetes.io/managed-by" not in labels


LOGS = {
    "m-router-x": "2026-01-01T00:00:05.1Z id=abc path=/v1/completions status=200\n"
    "2026-01-01T00:00:06Z id=other path=/v1/completions\n",
    "m-prefill-0": "2026-01-01T00:00:03Z room=77 sent\n"
    "2026-01-01T00:00:02Z rid=abc-1f room=77 queued\n"
    "2026-01-01T00:00:02Z rid=other-2f room=78 queued\n",
    "m-decode-1": "2026-01-01T00:00:04Z room=77 received\nno time\n",
}


def test_lines_of_a_request_are_found_by_its_id_and_its_room():
    assert [(line.pod, line.text) for line in trace(LOGS, "abc")] == [
        ("m-prefill-0", "rid=abc-1f room=77 queued"),
        ("m-prefill-0", "room=77 sent"),
        ("m-decode-1", "room=77 received"),
        ("m-router-x", "id=abc path=/v1/completions status=200"),
    ]


def test_unknown_request_has_no_lines():
    assert trace(LOGS, "zzz") == []

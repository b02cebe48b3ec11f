"""`plan`: what a deployment would take, and where it would fit."""

from __future__ import annotations

from typing import Any

import pytest

from pd_operator.desired import Choices, desired_state
from pd_operator.plugin.fit import nodes_of, placed, report, tolerated
from pd_operator.plugin.forecast import Part, parts, requests, summary, warnings
from tests.operator.builders import resource

GPU = {"gpus": 2, "resources": {"requests": {"cpu": "4", "memory": "8Gi"}}}


def made(**spec: Any) -> list[Part]:
    found = resource(**spec)
    return parts(found, desired_state(found, Choices()))


def node(name: str, *, gpus: int = 8, cpu: str = "64", **more: Any) -> dict[str, Any]:
    allocatable = {"cpu": cpu, "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    meta = {"name": name, "labels": more.get("labels", {})}
    spec = {"taints": more.get("taints", []), "unschedulable": more.get("cordoned", False)}
    return {"metadata": meta, "spec": spec, "status": {"allocatable": allocatable}}


def test_devices_are_counted_over_all_pods():
    prefill, decode, _ = made(prefill=GPU | {"replicas": 3}, decode=GPU | {"replicas": 2})
    assert [prefill.pods * prefill.asks["nvidia.com/gpu"], decode.asks["cpu"]] == [6, 4]
    assert "total" in summary([prefill, decode])


def test_workers_of_several_nodes_count_as_pods():
    role = {"gpus": 8, "nodesPerWorker": 2, "replicas": 3}
    [prefill, *_] = made(engine={"image": "i", "type": "SGLang"}, prefill=role)
    assert (prefill.workers, prefill.pods, prefill.most) == (3, 6, 8)


def test_most_counts_autoscaling_and_surge():
    scaling = {"provider": "Builtin", "maxReplicas": 5}
    [prefill, *_] = made(prefill={"autoscaling": scaling}, rollout={"maxSurge": "50%"})
    assert prefill.most == 8


def test_a_limit_counts_where_there_is_no_request():
    container = {"resources": {"limits": {"cpu": "2", "g": "1"}, "requests": {"cpu": "500m"}}}
    assert requests({"containers": [container, container]}) == {"cpu": 1, "g": 2}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"prefill": GPU}, "rdma.mode is None"),
        ({"engine": {"image": "worker"}}, "names no version"),
        ({"engine": {"image": "host:5000/worker"}}, "names no version"),
        ({"rollout": {"maxSurge": 0, "maxUnavailable": 1}}, "every rollout interrupts service"),
        ({"decode": {"replicas": 2, "drainTimeoutSeconds": 0}}, "ends running requests"),
        ({"prefill": GPU, "decode": GPU, "scaling": {"maxGPUs": 4}}, "no room for a surge"),
    ],
    ids=["tcp", "no tag", "port is no tag", "no surge", "no drain", "budget"],
)
def test_doubtful_settings_are_named(spec, told):
    assert any(told in each for each in warnings(resource(**spec)))


def test_sound_settings_raise_no_doubt():
    two = {"replicas": 2, "gpus": 0}
    assert list(warnings(resource(prefill=two, decode=two))) == []


def test_pods_fill_nodes_and_what_lacks_is_named():
    [prefill, *_] = made(prefill=GPU | {"replicas": 5})
    nodes = nodes_of([node("a", gpus=4), node("b", gpus=2)], [])
    assert report([prefill], nodes) == [
        "prefill: 3 of 5 pods find a node (a ×2, b ×1); no node has enough nvidia.com/gpu"
    ]


def test_running_pods_take_their_room_and_ended_ones_do_not():
    def running(phase: str) -> dict[str, Any]:
        asks = {"resources": {"limits": {"nvidia.com/gpu": "4"}}}
        spec = {"nodeName": "a", "containers": [asks]}
        return {"spec": spec, "status": {"phase": phase}}

    [prefill, *_] = made(prefill=GPU | {"replicas": 4})
    nodes = nodes_of([node("a")], [running("Running"), running("Succeeded")])
    assert placed(prefill, nodes) == {"a": 2}


@pytest.mark.parametrize(
    ("shape", "fits"),
    [
        ({}, True),
        ({"cordoned": True}, False),
        ({"cpu": "2"}, False),
        ({"taints": [{"key": "k", "effect": "NoSchedule"}]}, False),
        ({"labels": {"zone": "x"}}, True),
    ],
    ids=["free", "cordoned", "too small", "tainted", "labelled"],
)
def test_nodes_that_take_no_pod(shape, fits):
    [prefill, *_] = made(prefill=GPU)
    assert bool(placed(prefill, nodes_of([node("a", **shape)], []))) == fits


def test_node_selector_is_honoured():
    [prefill, *_] = made(prefill=GPU | {"nodeSelector": {"zone": "x"}})
    nodes = nodes_of([node("a"), node("b", labels={"zone": "x"})], [])
    assert placed(prefill, nodes) == {"b": 1}


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "operator": "Equal", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "w"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration, expected):
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    assert tolerated(taint, [toleration]) == expected


def test_preferences_keep_nobody_away():
    assert tolerated({"key": "k", "effect": "PreferNoSchedule"}, [])

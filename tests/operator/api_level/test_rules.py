"""The CRD as the API server understands it: what it refuses and why, and what it fills in."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from pd_operator.api.markers import Part, Rule
from pd_operator.api.model import Engine
from pd_operator.api.spec import Spec
from pd_operator.crd import NAME_RULE
from pd_operator.errors import Refused
from pd_operator.kinds import PDDEPLOYMENT
from pd_operator.resource import Manifest, Resource
from tests.cluster.client import Client
from tests.operator.api_level.conftest import Space

pytestmark = pytest.mark.cluster

HPA = {"provider": "HPA", "maxReplicas": 3}
SGLANG = {"engine": {"type": "SGLang", "image": "s"}}
PLUGIN = {"mode": "DevicePlugin", "resourceName": "rdma/x"}


def scaled(**more: Any) -> dict[str, Any]:
    return {"gpus": 0, "autoscaling": {"maxReplicas": 3, **more}}


def metrics(*types: str, **more: Any) -> dict[str, Any]:
    return {"metrics": [{"type": each, "target": 1} for each in types], **more}


REFUSED: dict[str, dict[str, Any]] = {
    "engine.args has a flag": {"engine": {"image": "i", "args": ["--port=1"]}},
    "prefill.args has a flag": {"prefill": {"gpus": 0, "args": ["--x", "--page_size=16"]}},
    "decode.args has a flag": {"decode": {"gpus": 0, "args": ["--role"]}},
    "args has a flag that other fields set (prefill": {"router": {"args": ["--decode-policy=x"]}},
    "prefill and decode are of no use without each other": {"prefill": {"replicas": 0}},
    "engine.port and transfer.bootstrapPort must differ": {"transfer": {"bootstrapPort": 30000}},
    "prefill scales by": {"prefill": scaled(**metrics("ITL"))},
    "decode scales by": {"decode": scaled(**metrics("TTFT"))},
    "a Pdserve prefill worker has one rank": {"prefill": {"gpus": 2}},
    "a Pdserve decode worker has one rank": {"decode": {"gpus": 0, "nodesPerWorker": 2}},
    "a Pdserve worker transfers by": {"transfer": {"backend": "Mori"}},
    "transfer.backend Fake uses no RDMA": {"transfer": {"backend": "Fake"}, "rdma": PLUGIN},
    "need more GPUs than scaling.maxGPUs": {"prefill": {"gpus": 1}, "scaling": {"maxGPUs": 0}},
    "ratio.min is above ratio.max": {"scaling": {"ratio": {"min": "2P3D", "max": "1P2D"}}},
    "maxSurge and rollout.maxUnavailable cannot": {"rollout": {"maxSurge": "0%"}},
    "tensorParallel is above": SGLANG
    | {"decode": {"gpus": 2, "nodesPerWorker": 2, "tensorParallel": 5}},
    "workers of several nodes can only": SGLANG
    | {"decode": {"nodesPerWorker": 2, "autoscaling": HPA}},
    "minReplicas is above maxReplicas": {"decode": scaled(minReplicas=4)},
    "a Prometheus metric needs a query": {
        "decode": scaled(**metrics("Prometheus", provider="KEDA", prometheusAddress="http://p"))
    },
    "only KEDA takes Prometheus": {
        "decode": scaled(
            provider="HPA", metrics=[{"type": "Prometheus", "target": 1, "query": "up"}]
        )
    },
    "KEDA needs prometheusAddress": {"decode": scaled(provider="KEDA")},
    "Builtin scales by the workers' own": {"decode": scaled(**metrics("CPU"))},
    "cache.type HostPath needs cache.path": {
        "model": {"source": "hf://a/b", "cache": {"type": "HostPath"}}
    },
    "cache.type PVC needs cache.claimName": {
        "model": {"source": "hf://a/b", "cache": {"type": "PVC"}}
    },
    "rdma.mode DevicePlugin needs": {"rdma": {"mode": "DevicePlugin"}},
    "rdma.mode ResourceClaim needs": {"rdma": {"mode": "ResourceClaim"}},
    "rdma.mode HostDevices runs privileged": {"rdma": {"mode": "HostDevices"}},
    "rdma.allowPrivileged has no use": {"rdma": {"allowPrivileged": True}},
    "hostPorts needs at least 4 ports": {"rdma": {"hostPorts": {"first": 10, "last": 12}}},
    "topology.colocate needs topology.key": {"topology": {"colocate": "Required"}},
}
"""By a part of the message."""

SCHEMA_REFUSED: dict[str, dict[str, Any]] = {
    "spec.model.source": {"model": {"source": "ftp://x"}},
    "spec.engine.image": {"engine": {}},
    "spec.prefill.replicas": {"prefill": {"replicas": -1}},
    "spec.decode.shmSize": {"decode": {"shmSize": "much"}},
    "spec.rollout.maxSurge": {"rollout": {"maxSurge": "half"}},
    "spec.engine.type": {"engine": {"image": "i", "type": "vLLM"}},
    "spec.rdma.devices": {"rdma": {"devices": ["a", "a"]}},
    "spec.scaling.ratio.min": {"scaling": {"ratio": {"min": "0P1D", "max": "1P1D"}}},
}

ACCEPTED: dict[str, dict[str, Any]] = {
    "minimal": {},
    "many flags": {"engine": {"image": "i", "args": ["--page-size=16", "--portion=1"]}},
    "role flags": {"prefill": {"gpus": 0, "args": ["--max-total-tokens=9"]}},
    "none of both": {"prefill": {"replicas": 0}, "decode": {"replicas": 0}},
    "suspended half": {"prefill": {"replicas": 0}, "suspend": True},
    "ratio": {"scaling": {"ratio": {"min": "1P4D", "max": "2P1D"}, "maxGPUs": 0}},
    "same ratio": {"scaling": {"ratio": {"min": "2P4D", "max": "1P2D"}}},
    "no surge": {"rollout": {"maxSurge": 0, "maxUnavailable": "25%"}},
    "hpa": {"decode": scaled(**metrics("CPU", "ITL", provider="HPA"))},
    "keda": {"decode": scaled(provider="KEDA", prometheusAddress="http://p")},
    "builtin": {"prefill": scaled(**metrics("QueueDepth", "TTFT"))},
    "many nodes": SGLANG | {"prefill": {"gpus": 8, "nodesPerWorker": 2, "tensorParallel": 16}},
    "many nodes, builtin": SGLANG
    | {"decode": {"nodesPerWorker": 2, "autoscaling": {"maxReplicas": 3}}},
    "other engine's backend": SGLANG | {"transfer": {"backend": "Mori"}},
    "device plugin": {"rdma": PLUGIN},
    "host devices": {"rdma": {"mode": "HostDevices", "allowPrivileged": True}},
    "claim": {"rdma": {"mode": "ResourceClaim", "claimTemplateName": "c"}},
    "colocated": {"topology": {"key": "rack", "colocate": "Required"}},
    "cache": {"model": {"source": "hf://a/b", "cache": {"type": "PVC", "claimName": "c"}}},
    "quantities": {"decode": {"gpus": 0, "shmSize": "0.5Gi", "resources": {"limits": {"cpu": 2}}}},
    "overlay": {"decode": {"gpus": 0, "podTemplate": {"spec": {"hostname": "h", "any": [1]}}}},
}


@pytest.fixture
def namespace() -> str:
    """Nothing but the one deployment of a test is stored here."""
    return "default"


async def tried(space: Space, body: Manifest) -> Manifest:
    """As the API server would store it."""
    path = PDDEPLOYMENT.path(space.namespace) + "?dryRun=All"
    return await space.cluster.create(Kindless(path), body)  # type: ignore[arg-type]


class Kindless:
    """A kind whose URL is given."""

    def __init__(self, path: str) -> None:
        self._path = path

    def path(self, *_: str) -> str:
        return self._path


@pytest.mark.parametrize("message", REFUSED)
async def test_nonsense_is_refused_with_a_reason(space: Space, message: str) -> None:
    with pytest.raises(Refused) as refusal:
        await tried(space, space.body(**REFUSED[message]))
    assert message in str(refusal.value)


@pytest.mark.parametrize("field", SCHEMA_REFUSED)
async def test_wrong_values_are_refused_by_field(space: Space, field: str) -> None:
    with pytest.raises(Refused, match=field.replace(".", r"\.")):
        await tried(space, space.body(**SCHEMA_REFUSED[field]))


@pytest.mark.parametrize("case", ACCEPTED)
async def test_sense_is_accepted(space: Space, case: str) -> None:
    await tried(space, space.body(**ACCEPTED[case]))


@pytest.mark.parametrize("name", ["a", "a" * 38, "a-1"])
async def test_names_that_fit_are_accepted(space: Space, name: str) -> None:
    await tried(space, space.body(name))


@pytest.mark.parametrize("name", ["a" * 39, "1a", "a.b"], ids=["long", "digit", "dot"])
async def test_names_of_which_no_child_can_be_named_are_refused(space: Space, name: str) -> None:
    with pytest.raises(Refused, match="at most 38"):
        await tried(space, space.body(name))


async def test_the_engine_cannot_change(space: Space) -> None:
    await space.create("fixed")
    with pytest.raises(Refused, match=r"engine\.type cannot change"):
        await space.edit("fixed", engine={"type": "SGLang"}, decode={"gpus": 0})
    await space.delete("fixed")


def rules_of(part: type[Part]) -> Iterator[Rule]:
    """Every rule of the API, those of nested parts too."""
    yield from part.rules
    for field in part.__struct_fields__:
        for inner in parts_in(part.__annotations__.get(field, "")):
            yield from rules_of(inner)


def parts_in(annotation: Any) -> Iterator[type[Part]]:
    known = {each.__name__: each for each in every_part(Part)}
    words = "".join(c if c.isalnum() else " " for c in str(annotation)).split()
    yield from (known[word] for word in words if word in known)


def every_part(part: type[Part]) -> Iterator[type[Part]]:
    for each in part.__subclasses__():
        yield each
        yield from every_part(each)


def test_every_rule_has_a_case() -> None:
    messages = {rule.message for rule in rules_of(Spec)} - {Engine.rules[0].message}
    assert len(messages) > 25
    assert {m for m in messages if not any(case in m for case in REFUSED)} == set()
    assert NAME_RULE["message"].startswith("metadata.name must have at most 38")


@pytest.mark.parametrize("case", ACCEPTED)
async def test_defaults_are_those_of_the_classes(space: Space, case: str) -> None:
    body = space.body(**ACCEPTED[case])
    stored = await tried(space, copy.deepcopy(body))
    assert Resource.parse(stored).spec == Resource.parse(body).spec
    assert stored["spec"]["transfer"]["bootstrapPort"] == 8998
    assert stored["spec"]["rdma"]["required"] is True


async def test_every_field_is_explained(space: Space, api: Client) -> None:
    text = api.kubectl("explain", "pddeployments", "--recursive")
    assert "nodesPerWorker" in text
    lines = api.kubectl("explain", "pddeployments.spec.decode.autoscaling.provider")
    assert "this operator, from the workers' own metrics" in lines


async def test_listed_by_short_name_with_its_columns(space: Space, api: Client) -> None:
    await space.create("listed")
    table = api.kubectl("get", "pdd", "-n", space.namespace)
    assert table.split("\n")[0].split() == ["NAME", "READY", "PHASE", "ROLLOUT", "AGE", "URL"]
    assert "listed" in api.kubectl("get", "inference", "-n", space.namespace)
    await space.delete("listed")

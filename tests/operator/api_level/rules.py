"""Deployments on both sides of every rule of the CRD, as near to each other as can be."""

from __future__ import annotations

from typing import Any, NamedTuple

Spec = dict[str, Any]


class Case(NamedTuple):
    """What one rule refuses, and what it lets pass."""

    refused: Spec
    accepted: Spec


SGLANG: Spec = {"engine": {"type": "SGLang", "image": "s"}}
PLUGIN = {"mode": "DevicePlugin", "resourceName": "rdma/x"}
HPA = {"provider": "HPA", "maxReplicas": 3}


def scaled(**more: Any) -> Spec:
    return {"gpus": 0, "autoscaling": {"maxReplicas": 3, **more}}


def metrics(*types: str, **more: Any) -> Spec:
    return {"metrics": [{"type": each, "target": 1} for each in types], **more}


def keda(**more: Any) -> Spec:
    return scaled(provider="KEDA", prometheusAddress="http://p", **more)


def args(role: str, *flags: str) -> Spec:
    return {role: {"gpus": 0, "args": [*flags]}}


def cache(**more: Any) -> Spec:
    return {"model": {"source": "hf://a/b", "cache": more}}


def ratio(least: str, most: str) -> Spec:
    return {"scaling": {"ratio": {"min": least, "max": most}}}


def bounded(prefill: str, decode: str, **scaling: Any) -> Spec:
    """Both roles scaled, by these providers."""
    roles = {"prefill": prefill, "decode": decode}
    address = {"prometheusAddress": "http://p"}
    return {role: scaled(provider=each, **address) for role, each in roles.items()} | {
        "scaling": scaling
    }


def nodes(**more: Any) -> Spec:
    return SGLANG | {"decode": {"gpus": 2, "nodesPerWorker": 2, **more}}


QUERY = [{"type": "Prometheus", "target": 1, "query": "up"}]

RULES: dict[str, Case] = {
    "engine.args has a flag": Case(
        {"engine": {"image": "i", "args": ["--port=1"]}},
        {"engine": {"image": "i", "args": ["--portion=1", "--page-size=16"]}},
    ),
    "prefill.args has a flag": Case(
        args("prefill", "--x", "--page_size=16"), args("prefill", "--x", "--max-total-tokens=9")
    ),
    "decode.args has a flag": Case(args("decode", "--role"), args("decode", "--roles")),
    "args has a flag that other fields set (prefill": Case(
        {"router": {"args": ["--decode-policy=x"]}}, {"router": {"args": ["--decode-polity=x"]}}
    ),
    "prefill and decode are of no use without each other": Case(
        {"prefill": {"replicas": 0}}, {"prefill": {"replicas": 0}, "decode": {"replicas": 0}}
    ),
    "engine.port and transfer.bootstrapPort must differ": Case(
        {"transfer": {"bootstrapPort": 30000}}, {"transfer": {"bootstrapPort": 30001}}
    ),
    "prefill scales by": Case(
        {"prefill": scaled(**metrics("ITL"))}, {"prefill": scaled(**metrics("QueueDepth", "TTFT"))}
    ),
    "decode scales by": Case(
        {"decode": scaled(**metrics("TTFT"))}, {"decode": scaled(**metrics("KVUtilization", "ITL"))}
    ),
    "a Pdserve prefill worker has one rank": Case({"prefill": {"gpus": 2}}, {"prefill": {}}),
    "a Pdserve decode worker has one rank": Case(
        {"decode": {"gpus": 0, "nodesPerWorker": 2}}, {"decode": {"gpus": 0, "tensorParallel": 1}}
    ),
    "a Pdserve worker transfers by": Case(
        {"transfer": {"backend": "Mori"}}, {"transfer": {"backend": "NIXL"}}
    ),
    "transfer.backend Fake uses no RDMA": Case(
        {"transfer": {"backend": "Fake"}, "rdma": PLUGIN}, {"transfer": {"backend": "Fake"}}
    ),
    "need more GPUs than scaling.maxGPUs": Case(
        {"prefill": {"gpus": 1}, "scaling": {"maxGPUs": 0}},
        {"prefill": {"gpus": 1}, "scaling": {"maxGPUs": 1}},
    ),
    "counted are replicas and minReplicas": Case(
        {"decode": scaled(minReplicas=3) | {"gpus": 1}, "scaling": {"maxGPUs": 2}},
        {"decode": scaled(minReplicas=3) | {"gpus": 1}, "scaling": {"maxGPUs": 3}},
    ),
    "under HPA and KEDA": Case(
        {"decode": scaled(**HPA) | {"gpus": 1}, "scaling": {"maxGPUs": 2}},
        {"decode": scaled(**HPA) | {"gpus": 1}, "scaling": {"maxGPUs": 3}},
    ),
    "keeps scaling.maxGPUs": Case(
        bounded("External", "HPA", maxGPUs=9), bounded("External", "Builtin", maxGPUs=9)
    ),
    "keeps scaling.ratio": Case(
        bounded("HPA", "KEDA", **ratio("1P2D", "2P1D")["scaling"]),
        bounded("HPA", "Builtin", **ratio("1P2D", "2P1D")["scaling"]),
    ),
    "ratio.min is above ratio.max": Case(ratio("2P3D", "1P2D"), ratio("1P2D", "2P3D")),
    "maxSurge and rollout.maxUnavailable cannot": Case(
        {"rollout": {"maxSurge": "0%"}}, {"rollout": {"maxSurge": "0%", "maxUnavailable": "25%"}}
    ),
    "tensorParallel is above": Case(nodes(tensorParallel=5), nodes(tensorParallel=4)),
    "workers of several nodes can only": Case(
        nodes(autoscaling=HPA), nodes(autoscaling=HPA | {"provider": "Builtin"})
    ),
    "minReplicas is above maxReplicas": Case(
        {"decode": scaled(minReplicas=4)}, {"decode": scaled(minReplicas=3)}
    ),
    "a Prometheus metric needs a query": Case(
        {"decode": keda(**metrics("Prometheus"))}, {"decode": keda(metrics=QUERY)}
    ),
    "only KEDA takes Prometheus": Case(
        {"decode": scaled(provider="HPA", metrics=QUERY)}, {"decode": keda(metrics=QUERY)}
    ),
    "KEDA needs prometheusAddress": Case({"decode": scaled(provider="KEDA")}, {"decode": keda()}),
    "Builtin scales by the workers' own": Case(
        {"decode": scaled(**metrics("CPU"))}, {"decode": scaled(**metrics("CPU", provider="HPA"))}
    ),
    "cache.type HostPath needs cache.path": Case(
        cache(type="HostPath"), cache(type="HostPath", path="/x")
    ),
    "cache.type PVC needs cache.claimName": Case(
        cache(type="PVC"), cache(type="PVC", claimName="c")
    ),
    "rdma.mode DevicePlugin needs": Case({"rdma": {"mode": "DevicePlugin"}}, {"rdma": PLUGIN}),
    "rdma.mode ResourceClaim needs": Case(
        {"rdma": {"mode": "ResourceClaim"}},
        {"rdma": {"mode": "ResourceClaim", "claimTemplateName": "c"}},
    ),
    "rdma.mode HostDevices runs privileged": Case(
        {"rdma": {"mode": "HostDevices"}},
        {"rdma": {"mode": "HostDevices", "allowPrivileged": True}},
    ),
    "rdma.allowPrivileged has no use": Case(
        {"rdma": {"allowPrivileged": True}}, {"rdma": {"allowPrivileged": False}}
    ),
    "hostPorts needs at least 4 ports": Case(
        {"rdma": {"hostPorts": {"first": 10, "last": 12}}},
        {"rdma": {"hostPorts": {"first": 10, "last": 13}}},
    ),
    "topology.colocate needs topology.key": Case(
        {"topology": {"colocate": "Required"}}, {"topology": {"colocate": "Required", "key": "k"}}
    ),
}
"""By a part of the rule's message."""

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

ACCEPTED: dict[str, Spec] = {
    "minimal": {},
    "suspended half": {"prefill": {"replicas": 0}, "suspend": True},
    "same ratio": ratio("2P4D", "1P2D"),
    "no surge": {"rollout": {"maxSurge": 0, "maxUnavailable": 1}},
    "many nodes": SGLANG | {"prefill": {"gpus": 8, "nodesPerWorker": 2, "tensorParallel": 16}},
    "other engine's backend": SGLANG | {"transfer": {"backend": "Mori"}},
    "host network": {"rdma": {"hostNetwork": True, "gidIndex": 3, "networks": ["a/b"]}},
    "quantities": {"decode": {"gpus": 0, "shmSize": "0.5Gi", "resources": {"limits": {"cpu": 2}}}},
    "overlay": {"decode": {"gpus": 0, "podTemplate": {"spec": {"hostname": "h", "any": [1]}}}},
}
"""What no rule is about, or several are."""

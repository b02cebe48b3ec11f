"""What the operator renders is what `pdserve worker` and `pdserve router` understand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tyro
import yaml

from pd_operator.desired import Choices, desired_state
from pd_operator.names import ROLES
from pd_operator.resource import Manifest, Resource
from pd_worker.config import WorkerConfig
from pd_worker.router.options import RouterOptions

BASE: Manifest = {
    "apiVersion": "pdserve.io/v1alpha1",
    "kind": "PDDeployment",
    "metadata": {"name": "m", "namespace": "llm", "uid": "u"},
    "spec": {
        "model": {"source": "hf://Qwen/Qwen3-8B", "revision": "main"},
        "engine": {"image": "i", "args": ["--page-size=64", "--dtype=bfloat16"]},
        "transfer": {"bootstrapTimeoutSeconds": 30, "waitingTimeoutSeconds": 60},
        "prefill": {"args": ["--chunked-prefill-size=2048"], "drainTimeoutSeconds": 17},
        "decode": {"args": ["--max-running-requests=128"], "drainTimeoutSeconds": 0},
        "rdma": {"mode": "DevicePlugin", "resourceName": "r", "devices": ["mlx5_0", "mlx5_1"]},
        "router": {"policy": "RoundRobin", "decodePolicy": "Random", "args": ["--max-queued=7"]},
    },
}


def container(component: str, manifests: list[Manifest]) -> Manifest:
    [manifest] = [
        each
        for each in manifests
        if each["kind"] in ("StatefulSet", "Deployment")
        and each["metadata"]["name"] == f"m-{component}"
    ]
    found: Manifest = manifest["spec"]["template"]["spec"]["containers"][0]
    return found


def parse(options: type, component: str, **spec: Any) -> Any:
    """The container's command line as the program itself parses it."""
    body = BASE | {"spec": BASE["spec"] | spec}
    made = container(component, desired_state(Resource.parse(body), Choices()))
    assert made["command"][0] == "pdserve"
    return tyro.cli(options, args=made["args"], config=(tyro.conf.OmitArgPrefixes,))


@pytest.mark.parametrize("role", ROLES)
def test_worker_gets_what_the_resource_says(role: str) -> None:
    config: WorkerConfig = parse(WorkerConfig, role)
    assert (config.role, config.model.model, config.model.name) == (
        role,
        "Qwen/Qwen3-8B",
        "Qwen3-8B",
    )
    assert (config.model.revision, config.model.dtype) == ("main", "bfloat16")
    assert (config.server.host, config.server.port) == ("0.0.0.0", 30000)
    assert config.disagg.bootstrap_port == 8998
    assert config.disagg.mooncake_protocol == "rdma"
    assert config.disagg.ib_device == "mlx5_0,mlx5_1"
    assert (config.disagg.bootstrap_timeout_s, config.disagg.transfer_timeout_s) == (30, 60)
    assert config.memory.page_size == 64


def test_each_role_gets_its_own_flags() -> None:
    prefill, decode = (parse(WorkerConfig, role) for role in ROLES)
    assert prefill.scheduler.chunked_prefill_size == 2048
    assert decode.scheduler.max_running_requests == 128
    assert (prefill.server.drain_timeout_s, decode.server.drain_timeout_s) == (17, 1)


@pytest.mark.parametrize(
    ("backend", "transport"), [("Mooncake", "mooncake"), ("NIXL", "nixl"), ("Fake", "fake")]
)
def test_every_backend_is_a_transport(backend: str, transport: str) -> None:
    spec = {"transfer": {"backend": backend}, "rdma": {"mode": "None"}}
    config: WorkerConfig = parse(WorkerConfig, "decode", **spec)
    assert (config.disagg.kv_transport, config.disagg.mooncake_protocol) == (transport, "tcp")


@pytest.mark.parametrize(
    ("source", "model"),
    [
        ("hostpath:///srv/models/tiny", "/models/tiny"),
        ("hostpath:///srv/models/tiny.gguf", "/models/tiny.gguf"),
        ("pvc://weights/deep/tiny/", "/models/tiny"),
        ("oci://registry.example/models/tiny:1", "/models/tiny"),
        ("hf://org/tiny", "org/tiny"),
    ],
    ids=lambda value: value.partition(":")[0],
)
def test_every_source_is_a_model_of_one_name(source: str, model: str) -> None:
    config: WorkerConfig = parse(WorkerConfig, "prefill", model={"source": source})
    assert (config.model.model, config.model.name) == (model, "tiny")


def test_router_gets_what_the_resource_says() -> None:
    options: RouterOptions = parse(RouterOptions, "router")
    assert (options.policy, options.decode_policy) == ("round_robin", "random")
    assert (options.host, options.port) == ("0.0.0.0", 8000)
    assert options.limits.max_queued == 7
    assert options.kubernetes.kubernetes_namespace == "$(POD_NAMESPACE)"
    assert options.kubernetes.kubernetes_prefill == "m-prefill"
    assert options.kubernetes.kubernetes_decode == "m-decode"


@pytest.mark.parametrize("example", sorted(Path("examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_example_renders_command_lines_that_parse(example: Path) -> None:
    resource = Resource.parse(yaml.safe_load(example.read_text()))
    if resource.spec.engine.type != "Pdserve":
        pytest.skip("runs another engine")
    kinds: dict[str, type] = {
        "prefill": WorkerConfig,
        "decode": WorkerConfig,
        "router": RouterOptions,
    }
    for manifest in desired_state(resource, Choices()):
        if manifest["kind"] in ("StatefulSet", "Deployment"):
            made = manifest["spec"]["template"]["spec"]["containers"][0]
            options = kinds[manifest["metadata"]["labels"]["app.kubernetes.io/component"]]
            tyro.cli(options, args=made["args"], config=(tyro.conf.OmitArgPrefixes,))

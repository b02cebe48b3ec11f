"""SGLang's server and its router, for images that hold them."""

from __future__ import annotations

from pd_operator import names
from pd_operator.engines.base import (
    ACCESS_PORT,
    Engine,
    Permission,
    Probes,
    Process,
    from_field,
    model_path,
    variable,
)
from pd_operator.engines.pdserve import POLICIES
from pd_operator.ports import Ports, ports_of
from pd_operator.resource import Manifest, Resource

BACKENDS = {
    "Mooncake": "mooncake",
    "NIXL": "nixl",
    "Mori": "mori",
    "Ascend": "ascend",
    "Fake": "fake",
}
BOOTSTRAP_ANNOTATION = "sglang.ai/bootstrap-port"
"""Where SGLang's router reads a prefill pod's bootstrap port."""
HEALTH = Probes(startup="/health", liveness="/health", readiness="/health")
"""Of the router, and of pods of a worker of several nodes: all but the first know no other path."""
SERVER = ["python3", "-m", "sglang.launch_server"]
# A pod of a worker of several nodes works out its rank and its leader from its ordinal.
RANKED = """\
rank=$((POD_INDEX % {nodes}))
leader=$((POD_INDEX - rank))
exec python3 -m sglang.launch_server "$@" --node-rank "$rank" \\
  --dist-init-addr "{leader}:{port}"
"""


class SGLang(Engine):
    """`sglang.launch_server` and `sglang_router.launch_router`."""

    router_reads = Permission(group="", resource="pods")
    hardened = False
    self_routing = False

    def worker(self, resource: Resource, role: names.Role) -> Process:
        part, ports = resource.role(role), ports_of(resource, role)
        nodes = part.nodes_per_worker
        args = self._args(resource, role, ports)
        env = self._env(resource)
        if nodes == 1:
            probes = Probes(startup="/health", liveness="/health", readiness="/ready")
            return Process(command=SERVER, args=args, env=env, probes=probes)
        leader = names.pod_host(resource.name, role, "$leader", resource.namespace)
        script = RANKED.format(nodes=nodes, leader=leader, port=ports.dist_init)
        index = from_field("POD_INDEX", "metadata.labels['apps.kubernetes.io/pod-index']")
        return Process(
            command=["sh", "-ec", script, "worker"],
            args=[*args, f"--nnodes={nodes}"],
            env=[*env, index],
            probes=HEALTH,
        )

    def _args(self, resource: Resource, role: names.Role, ports: Ports) -> list[str]:
        spec, part = resource.spec, resource.role(role)
        ranks = part.tensor_parallel or part.gpus * part.nodes_per_worker
        args = [
            f"--model-path={model_path(resource)}",
            f"--served-model-name={resource.served_name}",
            "--host=0.0.0.0",
            f"--port={ports.http}",
            f"--tp-size={max(1, ranks)}",
            f"--disaggregation-mode={role}",
            f"--disaggregation-transfer-backend={BACKENDS[spec.transfer.backend]}",
            f"--disaggregation-bootstrap-port={ports.bootstrap}",
            "--enable-metrics",
        ]
        if spec.model.revision:
            args.append(f"--revision={spec.model.revision}")
        if spec.rdma.devices:
            args.append(f"--disaggregation-ib-device={','.join(spec.rdma.devices)}")
        return args

    def _env(self, resource: Resource) -> list[Manifest]:
        transfer = resource.spec.transfer
        timeouts = {
            "SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT": transfer.bootstrap_timeout_seconds,
            "SGLANG_DISAGGREGATION_WAITING_TIMEOUT": transfer.waiting_timeout_seconds,
        }
        env = [variable(name, str(value)) for name, value in timeouts.items()]
        # A liveness probe must not ask for a token: a dead peer would take this worker with it.
        env.append(variable("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "false"))
        if resource.spec.rdma.mode == "None" and transfer.backend == "Mooncake":
            env.append(variable("MC_FORCE_TCP", "1"))
        return env

    def router(self, resource: Resource) -> Process:
        router = resource.spec.router
        args = [
            "--host=0.0.0.0",
            f"--port={ACCESS_PORT}",
            "--pd-disaggregation",
            f"--policy={POLICIES[router.policy]}",
            f"--decode-policy={POLICIES[router.decode_policy]}",
            "--service-discovery",
            "--service-discovery-namespace=$(POD_NAMESPACE)",
            f"--service-discovery-port={ports_of(resource, 'prefill').http}",
            *(arg for role in names.ROLES for arg in self._selector(resource, role)),
        ]
        env = [from_field("POD_NAMESPACE", "metadata.namespace")]
        command = ["python3", "-m", "sglang_router.launch_router"]
        return Process(command=command, args=args, env=env, probes=HEALTH)

    def _selector(self, resource: Resource, role: names.Role) -> list[str]:
        labels = names.selector(resource.name, role) | {names.ROUTABLE: "true"}
        return [f"--{role}-selector", *(f"{name}={value}" for name, value in labels.items())]

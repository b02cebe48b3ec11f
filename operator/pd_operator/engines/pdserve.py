"""This project's own worker and router."""

from __future__ import annotations

from pd_operator import names
from pd_operator.engines.base import (
    ACCESS_PORT,
    CACHE,
    Engine,
    Permission,
    Probes,
    Process,
    from_field,
    from_secret,
    model_path,
    variable,
)
from pd_operator.ports import ports_of
from pd_operator.resource import Manifest, Resource

SECRET_KEY = "secret"
WORKER_WAIT_S = 60
"""Requests wait so long at the router while a role's only worker is replaced."""
# A worker answers /health from its first second on, so /ready tells when it has loaded.
WORKER_PROBES = Probes(startup="/ready", liveness="/health", readiness="/ready")
# A router is ready while it sees a pair or saw one lately, so that its Service leads only to one
# that can serve.
ROUTER_PROBES = Probes(startup="/health", liveness="/health", readiness="/ready")
TRANSPORTS = {"Mooncake": "mooncake", "NIXL": "nixl", "Fake": "fake"}
POLICIES = {
    "Random": "random",
    "RoundRobin": "round_robin",
    "PowerOfTwo": "power_of_two",
    "CacheAware": "cache_aware",
}


class Pdserve(Engine):
    """`pdserve worker` and `pdserve router`."""

    router_reads = Permission(group="discovery.k8s.io", resource="endpointslices")
    hardened = True
    self_routing = True

    def worker(self, resource: Resource, role: names.Role) -> Process:
        spec, ports = resource.spec, ports_of(resource, role)
        args = [
            f"--role={role}",
            f"--model={model_path(resource)}",
            f"--served-model-name={resource.served_name}",
            "--host=0.0.0.0",
            f"--port={ports.http}",
            f"--bootstrap-port={ports.bootstrap}",
            "--advertise-host=$(POD_IP)",
            f"--kv-transport={TRANSPORTS[spec.transfer.backend]}",
            f"--mooncake-protocol={'tcp' if spec.rdma.mode == 'None' else 'rdma'}",
            f"--bootstrap-timeout-s={spec.transfer.bootstrap_timeout_seconds}",
            f"--transfer-timeout-s={spec.transfer.waiting_timeout_seconds}",
            f"--drain-timeout-s={max(1, resource.role(role).drain_timeout_seconds)}",
        ]
        if spec.model.revision:
            args.append(f"--revision={spec.model.revision}")
        if spec.rdma.devices:
            args.append(f"--ib-device={','.join(spec.rdma.devices)}")
        env = [from_field("POD_IP", "status.podIP"), *self._env(resource)]
        return Process(command=["pdserve", "worker"], args=args, env=env, probes=WORKER_PROBES)

    def router(self, resource: Resource) -> Process:
        router = resource.spec.router
        args = [
            "--host=0.0.0.0",
            f"--port={ACCESS_PORT}",
            f"--policy={POLICIES[router.policy]}",
            f"--decode-policy={POLICIES[router.decode_policy]}",
            f"--drain-timeout-s={router.drain_timeout_seconds}",
            f"--worker-wait-s={WORKER_WAIT_S}",
            "--kubernetes-namespace=$(POD_NAMESPACE)",
            *(f"--kubernetes-{r}={names.workload(resource.name, r)}" for r in names.ROLES),
        ]
        env = [from_field("POD_NAMESPACE", "metadata.namespace"), *self._env(resource)]
        return Process(command=["pdserve", "router"], args=args, env=env, probes=ROUTER_PROBES)

    def _env(self, resource: Resource) -> list[Manifest]:
        secret = from_secret("PDSERVE_SECRET", resource.secret, SECRET_KEY)
        return [secret, variable("HOME", "/tmp"), variable("PDSERVE_CACHE", CACHE)]

"""PDDeployment.spec: a model served by prefill workers, decode workers and a router."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from pd_operator.api.fabric import Rdma, Topology, Transfer
from pd_operator.api.markers import (
    Count,
    Env,
    ImageName,
    IntOrPercent,
    Opaque,
    Part,
    Port,
    Resources,
    Rule,
    Seconds,
    SomeSeconds,
    refuse_flags,
)
from pd_operator.api.model import Args, Engine, Model
from pd_operator.api.role import DECODE_METRICS, PREFILL_METRICS, PodTemplate, Role

PairRatio = Annotated[str, Meta(max_length=16, pattern=r"^[1-9][0-9]{0,3}P[1-9][0-9]{0,3}D$")]
Policy = Literal["Random", "RoundRobin", "PowerOfTwo", "CacheAware"]

RESERVED = (
    "role", "model", "model-path", "served-model-name", "revision", "host", "port",
    "bootstrap-port", "advertise-host", "kv-transport", "mooncake-protocol", "ib-device",
    "bootstrap-timeout-s", "transfer-timeout-s", "drain-timeout-s", "disaggregation-mode",
    "disaggregation-transfer-backend", "disaggregation-bootstrap-port",
    "disaggregation-ib-device", "tp", "tp-size", "tensor-parallel-size", "nnodes", "node-rank",
    "dist-init-addr", "enable-metrics",
)  # fmt: skip
"""Flags that must agree on several sides, so that only the operator sets them."""
PAIRING = ("page-size", "dtype", "kv-cache-dtype", "context-length", "kv-checksum")
"""Flags that must be equal in both roles, so that they belong to engine.args."""
ROUTER_RESERVED = (
    "prefill", "decode", "worker", "host", "port", "policy", "decode-policy", "prefill-policy",
    "pd-disaggregation", "service-discovery", "prefill-selector", "decode-selector",
    "service-discovery-namespace", "service-discovery-port", "kubernetes-prefill",
    "kubernetes-decode", "kubernetes-namespace", "drain-timeout-s",
)  # fmt: skip


class Ratio(Part, frozen=True, kw_only=True):
    """Bounds of prefill to decode workers."""

    rules: ClassVar = (
        Rule(
            "int(self.min.split('P')[0]) * int(self.max.split('P')[1].split('D')[0])"
            " <= int(self.max.split('P')[0]) * int(self.min.split('P')[1].split('D')[0])",
            "ratio.min is above ratio.max",
        ),
    )

    min: PairRatio
    """Fewest prefill workers to decode workers, such as 1P4D."""
    max: PairRatio
    """Most prefill workers to decode workers, such as 2P1D."""


class Scaling(Part, frozen=True, kw_only=True):
    """Bounds on both roles together; what the Builtin provider asks for is cut to them."""

    ratio: Ratio | None = None
    """Prefill to decode; kept by the Builtin provider."""
    max_gpus: Count | None = field(default=None, name="maxGPUs")
    """GPUs of the deployment, pending and surge pods included. HPA and KEDA stay below it by their
    maxReplicas."""


class Rollout(Part, frozen=True, kw_only=True):
    """How a change of the pods is carried out."""

    rules: ClassVar = (
        Rule(
            "string(self.maxSurge) != '0' && string(self.maxSurge) != '0%'"
            " || string(self.maxUnavailable) != '0' && string(self.maxUnavailable) != '0%'",
            "rollout.maxSurge and rollout.maxUnavailable cannot both be 0",
        ),
    )

    strategy: Literal["Paired", "InPlace", "Recreate"] = "Paired"
    """Paired: workers of old and new revision always find a partner of their own. InPlace: each
    role rolls by itself. Recreate: all old workers go before new ones come."""
    max_surge: IntOrPercent = 1
    """Workers of a role above its replicas meanwhile."""
    max_unavailable: IntOrPercent = 0
    """Workers of a role that may be missing meanwhile; 1 where there is no room for a surge."""
    paused: bool = False
    """Change nothing of running workers."""
    min_ready_seconds: Seconds = 0
    """A new worker counts after it was ready for so long."""
    progress_deadline_seconds: SomeSeconds = 3600
    """Without progress for so long the rollout is Stalled; the old workers go on."""
    revision_history_limit: Annotated[int, Meta(ge=0, le=100)] = 5
    """Old revisions kept to go back to."""


class Router(Part, frozen=True, kw_only=True):
    """The access layer."""

    rules: ClassVar = (refuse_flags("self.args", *ROUTER_RESERVED),)

    enabled: bool = True
    """False where another gateway chooses the pairs."""
    image: ImageName | None = None
    """The engine's image where absent."""
    replicas: Annotated[int, Meta(ge=0, le=100)] = 1
    """Router pods."""
    policy: Policy = "CacheAware"
    """Who gets a prompt among the prefill workers."""
    decode_policy: Policy = "PowerOfTwo"
    """Who decodes."""
    port: Port = 8000
    """Port of the Service."""
    service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service."""
    args: Args = ()
    """More flags."""
    env: Env = ()
    """Environment."""
    resources: Resources = Resources()
    """CPU and memory of a router pod."""
    drain_timeout_seconds: Seconds = 300
    """Longest time that a router that is to go may finish its requests."""
    pod_template: PodTemplate | None = None
    """Overlay; the container is `router`."""


class Monitoring(Part, frozen=True, kw_only=True):
    """Metrics."""

    pod_monitor: bool = False
    """Make a PodMonitor; where the cluster knows no such kind, MonitoringActive says so."""


class NetworkPolicy(Part, frozen=True, kw_only=True):
    """Who reaches the workers."""

    enabled: bool = False
    """Only the deployment's own pods and the operator reach its workers, and metrics scrapers their
    HTTP port."""
    scrapers: Opaque | None = None
    """Namespaces whose pods may scrape, as a label selector; {} is all of them, absent is none."""


def _one_rank(role: str) -> Rule:
    """What the Pdserve engine asks of a role."""
    return Rule(
        f"self.engine.type != 'Pdserve' || self.{role}.nodesPerWorker == 1 && self.{role}.gpus <= 1"
        f" && (!has(self.{role}.tensorParallel) || self.{role}.tensorParallel == 1)",
        f"a Pdserve {role} worker has one rank: gpus at most 1, nodesPerWorker and"
        " tensorParallel 1",
    )


def _scaled_by(*providers: str) -> str:
    """CEL: one of these scales prefill or decode."""
    return " || ".join(
        f"has(self.{role}.autoscaling) && self.{role}.autoscaling.provider in {[*providers]}"
        for role in ("prefill", "decode")
    )


def _certain_gpus(role: str) -> str:
    """CEL: GPUs that a role has, or may get without the operator being asked."""
    part = f"self.{role}"
    scaling = f"{part}.autoscaling"
    bounded = f"({part}.replicas > {scaling}.minReplicas ? {part}.replicas : {scaling}.minReplicas)"
    others = f"({scaling}.provider in ['HPA', 'KEDA'] ? {scaling}.maxReplicas : {bounded})"
    workers = f"(has({scaling}) ? {others} : {part}.replicas)"
    return f"{workers} * {part}.gpus * {part}.nodesPerWorker"


class Spec(Part, frozen=True, kw_only=True):
    """A model served by prefill workers, decode workers and a router."""

    rules: ClassVar = (
        refuse_flags("self.engine.args", *RESERVED),
        refuse_flags("self.prefill.args", *RESERVED, *PAIRING),
        refuse_flags("self.decode.args", *RESERVED, *PAIRING),
        Rule(
            "self.suspend || (self.prefill.replicas == 0) == (self.decode.replicas == 0)",
            "prefill and decode are of no use without each other: give both replicas, or none",
        ),
        Rule(
            "self.engine.port != self.transfer.bootstrapPort",
            "engine.port and transfer.bootstrapPort must differ",
        ),
        Rule(
            f"!has(self.prefill.autoscaling) || self.prefill.autoscaling.metrics.all(m, m.type in"
            f" {list(PREFILL_METRICS)})",
            f"prefill scales by {', '.join(PREFILL_METRICS)}",
        ),
        Rule(
            f"!has(self.decode.autoscaling) || self.decode.autoscaling.metrics.all(m, m.type in"
            f" {list(DECODE_METRICS)})",
            f"decode scales by {', '.join(DECODE_METRICS)}",
        ),
        _one_rank("prefill"),
        _one_rank("decode"),
        Rule(
            "self.engine.type != 'Pdserve' || self.transfer.backend in"
            " ['Mooncake', 'NIXL', 'Fake']",
            "a Pdserve worker transfers by Mooncake, NIXL or Fake",
        ),
        Rule(
            "self.transfer.backend != 'Fake' || self.rdma.mode == 'None'",
            "transfer.backend Fake uses no RDMA devices",
        ),
        Rule(
            "!has(self.scaling.maxGPUs) || self.suspend || self.scaling.maxGPUs >="
            f" {_certain_gpus('prefill')} + {_certain_gpus('decode')}",
            "prefill and decode need more GPUs than scaling.maxGPUs; counted are replicas and"
            " minReplicas, and under HPA and KEDA, which know no such bound, maxReplicas",
        ),
        Rule(
            f"!has(self.scaling.maxGPUs) || !({_scaled_by('External')}) || {_scaled_by('Builtin')}",
            "nothing keeps scaling.maxGPUs where a role is scaled by External and none by Builtin",
        ),
        Rule(
            f"!has(self.scaling.ratio) || !({_scaled_by('HPA', 'KEDA', 'External')})"
            f" || {_scaled_by('Builtin')}",
            "nothing keeps scaling.ratio where a role is scaled by HPA, KEDA or External and none"
            " by Builtin",
        ),
    )

    model: Model
    """What is served."""
    engine: Engine
    """What both roles run."""
    prefill: Role = Role()
    """The workers that read prompts."""
    decode: Role = Role()
    """The workers that write answers."""
    transfer: Transfer = Transfer()
    """How KV moves from prefill to decode."""
    rdma: Rdma = Rdma()
    """RDMA devices of the workers."""
    topology: Topology = Topology()
    """Placement of the roles to each other."""
    scaling: Scaling = Scaling()
    """Bounds on both roles together."""
    rollout: Rollout = Rollout()
    """How a change of the pods is carried out."""
    router: Router = Router()
    """The access layer."""
    monitoring: Monitoring = Monitoring()
    """Metrics."""
    network_policy: NetworkPolicy = NetworkPolicy()
    """Who reaches the workers."""
    suspend: bool = False
    """Remove all pods, keep everything else."""

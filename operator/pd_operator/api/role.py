"""A role: how many workers it has, what each gets, how they scale, start and stop."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, field

from pd_operator.api.markers import (
    Count,
    Env,
    IntOrPercent,
    Labels,
    Name,
    Opaque,
    Part,
    Quantity,
    Resources,
    Rule,
    Seconds,
    Text,
    at_most,
)
from pd_operator.api.model import Args

PREFILL_METRICS = ("QueueDepth", "TTFT", "PrefillTokenRate", "CPU", "Prometheus")
DECODE_METRICS = (
    "KVUtilization", "ITL", "RunningRequests", "PreallocQueue", "TransferQueue",
    "CPU", "Prometheus",
)  # fmt: skip
MetricType = Literal[
    "QueueDepth", "TTFT", "PrefillTokenRate", "KVUtilization", "ITL", "RunningRequests",
    "PreallocQueue", "TransferQueue", "CPU", "Prometheus",
]  # fmt: skip
Provider = Literal["Builtin", "HPA", "KEDA", "External"]


class Metric(Part, frozen=True, kw_only=True):
    """One signal, and the value that a worker should have."""

    rules: ClassVar = (
        Rule("self.type != 'Prometheus' || has(self.query)", "a Prometheus metric needs a query"),
    )

    type: MetricType
    """Prefill: QueueDepth (requests waiting a worker), TTFT (seconds), PrefillTokenRate (tokens/s).
    Decode: KVUtilization (0 to 1), ITL (seconds), RunningRequests, PreallocQueue, TransferQueue
    (requests a worker). Both: CPU (percent of its request), Prometheus (KEDA: `query`)."""
    target: Quantity
    """The value a worker should have: a quantity, such as 4, "0.8" or 800m."""
    query: Text | None = None
    """Prometheus: the query whose value is divided among the workers."""


class Autoscaling(Part, frozen=True, kw_only=True):
    """Who decides how many workers the role has, and within which bounds."""

    rules: ClassVar = (
        Rule("self.minReplicas <= self.maxReplicas", "minReplicas is above maxReplicas"),
        Rule(
            "self.provider == 'KEDA' || self.metrics.all(m, m.type != 'Prometheus')",
            "only KEDA takes Prometheus metrics",
        ),
        Rule(
            "self.provider != 'KEDA' || has(self.prometheusAddress)",
            "KEDA needs prometheusAddress",
        ),
        Rule(
            "self.provider != 'Builtin' || self.metrics.all(m, m.type != 'CPU')",
            "Builtin scales by the workers' own metrics, not by CPU",
        ),
    )

    provider: Provider = "Builtin"
    """Builtin: this operator, from the workers' own metrics. HPA, KEDA: an object of that kind is
    made. External: someone else writes the StatefulSet's scale."""
    min_replicas: Annotated[int, Meta(ge=1, le=10000)] = 1
    """Fewest workers."""
    max_replicas: Annotated[int, Meta(ge=1, le=10000)]
    """Most workers."""
    metrics: Annotated[tuple[Metric, ...], at_most(8, keys=("type",))] = ()
    """Signals; the one that asks for most workers wins. Absent: QueueDepth 4 on prefill,
    KVUtilization 0.8 on decode."""
    scale_up_stabilization_seconds: Seconds = 30
    """Scale up only to what was asked for during the whole of so long."""
    scale_down_stabilization_seconds: Seconds = 300
    """Scale down only to the most that was asked for within so long."""
    prometheus_address: Text | None = None
    """KEDA: URL of the Prometheus that scrapes the workers."""


class DisruptionBudget(Part, frozen=True, kw_only=True):
    """How many workers an eviction may take at a time."""

    max_unavailable: IntOrPercent = 1
    """A number or a percentage of the role's pods."""


class Toleration(Part, frozen=True, kw_only=True):
    """As in a pod."""

    key: Text | None = None
    """Taint key; absent matches all."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Exists ignores the value."""
    value: Text | None = None
    """Taint value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Taint effect; absent matches all."""
    toleration_seconds: int | None = None
    """NoExecute: how long it is tolerated."""


class PodTemplate(Part, frozen=True, kw_only=True):
    """Laid over the generated pod template, by strategic merge; it has the last word."""

    metadata: Opaque | None = None
    """Labels and annotations to add."""
    spec: Opaque | None = None
    """Pod fields to set; containers and volumes are merged by name (the worker is `worker`)."""


class Role(Part, frozen=True, kw_only=True):
    """The workers of one role."""

    rules: ClassVar = (
        Rule(
            "self.nodesPerWorker == oldSelf.nodesPerWorker",
            "nodesPerWorker cannot change, as running pods would be counted as parts of other"
            " workers: make a second deployment",
        ),
        Rule(
            "!has(self.tensorParallel) || self.gpus == 0"
            " || self.tensorParallel <= self.gpus * self.nodesPerWorker",
            "tensorParallel is above gpus × nodesPerWorker",
        ),
        Rule(
            "self.nodesPerWorker == 1 || !has(self.autoscaling)"
            " || self.autoscaling.provider == 'Builtin'",
            "workers of several nodes can only be scaled by replicas or the Builtin provider",
        ),
    )

    replicas: Count = 1
    """Workers. With `autoscaling` the number at creation; later the scaler's word counts."""
    gpus: Annotated[int, Meta(ge=0, le=64)] = 1
    """GPUs of a pod; 0 runs on the CPU."""
    gpu_resource: Name = "nvidia.com/gpu"
    """The resource that a GPU is asked for by."""
    nodes_per_worker: Annotated[int, Meta(ge=1, le=64)] = 1
    """Pods that form one worker (SGLang); they start, fail and go together. Cannot change."""
    tensor_parallel: Annotated[int, Meta(ge=1, le=4096)] | None = None
    """Ranks of a worker; gpus × nodesPerWorker where absent."""
    args: Args = ()
    """Flags of this role, after the engine's."""
    env: Env = ()
    """Environment of this role, after the engine's."""
    resources: Resources = Resources()
    """CPU, memory and other resources of a pod; GPUs and RDMA devices are added."""
    node_selector: Labels = field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: Annotated[tuple[Toleration, ...], at_most(32)] = ()
    """Taints that are tolerated."""
    affinity: Opaque | None = None
    """As in a pod; `topology` adds to it."""
    priority_class_name: Name | None = None
    """PriorityClass of the pods."""
    shm_size: Quantity = "16Gi"
    """Size of /dev/shm; counts as memory of the pod as it fills."""
    startup_timeout_seconds: Annotated[int, Meta(ge=10, le=86400)] = 1800
    """Longest time to load the model; then the container is restarted."""
    drain_timeout_seconds: Seconds = 300
    """Longest time that a worker that is to go may finish its requests and transfers."""
    disruption_budget: DisruptionBudget = DisruptionBudget()
    """Bound on voluntary evictions."""
    autoscaling: Autoscaling | None = None
    """Lets the number of workers follow the load."""
    pod_template: PodTemplate | None = None
    """Overlay."""

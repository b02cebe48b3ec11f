"""The Builtin scaler's view of a deployment. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from pd_operator import names, quantity
from pd_operator.api.role import Autoscaling
from pd_operator.metrics import WorkerLoad
from pd_operator.objects.scalers import DEFAULTS
from pd_operator.observed import Observed
from pd_operator.proposal import Target
from pd_operator.resource import Resource
from pd_operator.roster import crews, unschedulable
from pd_operator.scaling import Observed as Sizes
from pd_operator.scaling import RoleObserved, RoleScaling, ScalingSpec
from pd_operator.sizing import Bounds, Size
from pd_operator.stabilize import Windows

Loads = Mapping[str, WorkerLoad]
"""By the name of the worker's first pod."""
EXTERNAL = ("HPA", "KEDA", "External")


def is_builtin(resource: Resource, role: names.Role) -> bool:
    """True where this operator scales the role by its metrics."""
    scaling = resource.role(role).autoscaling
    return scaling is not None and scaling.provider == "Builtin"


def is_external(resource: Resource, role: names.Role) -> bool:
    """True where someone else writes the role's replicas."""
    scaling = resource.role(role).autoscaling
    return scaling is not None and scaling.provider in EXTERNAL


def devices(resource: Resource, role: names.Role) -> int:
    """GPUs of one worker."""
    part = resource.role(role)
    return part.gpus * part.nodes_per_worker


def scaling_spec(
    resource: Resource, sizes: Mapping[names.Role, int], surge_devices: int
) -> ScalingSpec:
    """What the deployment asks for; `sizes` are its present workers without a surge."""
    scaling = resource.spec.scaling
    ratio, budget = scaling.ratio, scaling.max_gpus
    return ScalingSpec(
        prefill=_role_spec(resource, "prefill", sizes["prefill"]),
        decode=_role_spec(resource, "decode", sizes["decode"]),
        ratio=(Size.parse(ratio.min), Size.parse(ratio.max)) if ratio else None,
        budget=max(budget - surge_devices, 0) if budget is not None else None,
        prefill_devices=devices(resource, "prefill"),
        decode_devices=devices(resource, "decode"),
    )


def _role_spec(resource: Resource, role: names.Role, size: int) -> RoleScaling:
    scaling = resource.role(role).autoscaling
    if scaling is None or not is_builtin(resource, role):
        return RoleScaling(bounds=Bounds(least=size, most=size))
    return RoleScaling(
        bounds=Bounds(least=scaling.min_replicas, most=scaling.max_replicas),
        targets=_targets(role, scaling),
        windows=Windows(
            up_s=scaling.scale_up_stabilization_seconds,
            down_s=scaling.scale_down_stabilization_seconds,
        ),
    )


def _targets(role: names.Role, scaling: Autoscaling) -> tuple[Target, ...]:
    return tuple(
        Target(type=metric.type, value=float(quantity.parse(metric.target)))
        for metric in scaling.metrics or (DEFAULTS[role],)
        if metric.type != "CPU" and metric.type != "Prometheus"
    )


def sizes_seen(
    resource: Resource, observed: Observed, sizes: Mapping[names.Role, int], loads: Loads
) -> Sizes:
    """Both roles as the scaler sees them."""
    return Sizes(
        prefill=_role_seen(resource, observed, "prefill", sizes, loads),
        decode=_role_seen(resource, observed, "decode", sizes, loads),
    )


def _role_seen(
    resource: Resource,
    observed: Observed,
    role: names.Role,
    sizes: Mapping[names.Role, int],
    loads: Loads,
) -> RoleObserved:
    living = [
        pods
        for pods in crews(resource, observed, role).values()
        if not any(pod.terminating for pod in pods)
    ]
    ready = [pods for pods in living if all(pod.ready for pod in pods)]
    return RoleObserved(
        replicas=sizes[role],
        ready=len(ready),
        starting=sum(all(not pod.reason for pod in pods) for pods in living) - len(ready),
        unschedulable=unschedulable([pod for pods in living for pod in pods]),
        loads=tuple(loads[pods[0].name] for pods in ready if pods[0].name in loads),
    )

"""Objects of other scalers: HorizontalPodAutoscaler and KEDA's ScaledObject."""

from __future__ import annotations

from pd_operator import metrics, names
from pd_operator.api.role import Autoscaling, Metric
from pd_operator.objects.meta import child
from pd_operator.quantity import parse
from pd_operator.resource import Manifest, Resource

HISTOGRAMS = ("TTFT", "ITL")
RATES = ("PrefillTokenRate",)
DEFAULTS = {
    "prefill": Metric(type="QueueDepth", target=4),
    "decode": Metric(type="KVUtilization", target="0.8"),
}


def series(engine: str, metric: str) -> str:
    """The workers' series behind a signal."""
    known = metrics.NAMES[engine]
    return {
        "QueueDepth": known.queue,
        "TTFT": known.ttft,
        "PrefillTokenRate": known.prompt_tokens,
        "KVUtilization": known.kv_usage,
        "ITL": known.itl,
        "RunningRequests": known.running,
        "PreallocQueue": known.prealloc_queue,
        "TransferQueue": known.transfer_queue,
    }[metric]


def scaler(resource: Resource, role: names.Role) -> Manifest | None:
    """The role's scaler object; None where none is asked for."""
    scaling = resource.role(role).autoscaling
    if scaling is None or resource.spec.suspend:
        return None
    if scaling.provider == "HPA":
        return _hpa(resource, role, scaling)
    return _scaled_object(resource, role, scaling) if scaling.provider == "KEDA" else None


def _metrics(role: names.Role, scaling: Autoscaling) -> tuple[Metric, ...]:
    return scaling.metrics or (DEFAULTS[role],)


def _target(resource: Resource, role: names.Role) -> Manifest:
    name = names.workload(resource.name, role)
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": name}


def _behavior(scaling: Autoscaling) -> Manifest:
    return {
        "scaleUp": {"stabilizationWindowSeconds": scaling.scale_up_stabilization_seconds},
        "scaleDown": {"stabilizationWindowSeconds": scaling.scale_down_stabilization_seconds},
    }


def _hpa(resource: Resource, role: names.Role, scaling: Autoscaling) -> Manifest:
    spec = {
        "scaleTargetRef": _target(resource, role),
        "minReplicas": scaling.min_replicas,
        "maxReplicas": max(scaling.min_replicas, scaling.max_replicas),
        "metrics": [_hpa_metric(resource, metric) for metric in _metrics(role, scaling)],
        "behavior": _behavior(scaling),
    }
    name = names.workload(resource.name, role)
    return child(resource, "autoscaling/v2", "HorizontalPodAutoscaler", name, role, spec=spec)


def _hpa_metric(resource: Resource, metric: Metric) -> Manifest:
    if metric.type == "CPU":
        target = {"type": "Utilization", "averageUtilization": int(parse(metric.target))}
        return {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    name = series(resource.spec.engine.type, metric.type)
    target = {"type": "AverageValue", "averageValue": str(metric.target)}
    return {"type": "Pods", "pods": {"metric": {"name": name}, "target": target}}


def _scaled_object(resource: Resource, role: names.Role, scaling: Autoscaling) -> Manifest:
    spec = {
        "scaleTargetRef": _target(resource, role),
        "minReplicaCount": scaling.min_replicas,
        "maxReplicaCount": scaling.max_replicas,
        "triggers": [_trigger(resource, role, m, scaling) for m in _metrics(role, scaling)],
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(scaling)}},
    }
    name = names.workload(resource.name, role)
    return child(resource, "keda.sh/v1alpha1", "ScaledObject", name, role, spec=spec)


def _trigger(
    resource: Resource, role: names.Role, metric: Metric, scaling: Autoscaling
) -> Manifest:
    if metric.type == "CPU":
        return {
            "type": "cpu",
            "metricType": "Utilization",
            "metadata": {"value": str(metric.target)},
        }
    address = {"serverAddress": str(scaling.prometheus_address)}
    query = metric.query or _query(resource, role, metric)
    return {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": address | {"query": query, "threshold": f"{float(parse(metric.target)):g}"},
    }


def _query(resource: Resource, role: names.Role, metric: Metric) -> str:
    """The sum over the role's workers; KEDA divides it by their number."""
    name = series(resource.spec.engine.type, metric.type)
    pods = f'namespace="{resource.namespace}",pod=~"{names.workload(resource.name, role)}-[0-9]+"'
    if metric.type in RATES:
        return f"sum(rate({name}{{{pods}}}[1m]))"
    if metric.type in HISTOGRAMS:
        total, count = f"{name}_sum{{{pods}}}", f"{name}_count{{{pods}}}"
        return f"sum(rate({total}[1m]) / (rate({count}[1m]) > 0))"
    return f"sum({name}{{{pods}}})"

"""Each condition of a deployment, one function a condition. Pure.

A condition that is neither True nor False for lack of facts is Unknown; Reconciling and Stalled
are present only while they hold, as kstatus wants it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pd_operator import names
from pd_operator.api.status import Truth
from pd_operator.kinds import POD_MONITOR, SCALED_OBJECT
from pd_operator.observed import Observed, dominant, seconds
from pd_operator.resource import Resource
from pd_operator.roster import crews


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a condition says."""

    truth: Truth
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was decided elsewhere and is told in the status."""

    wanted: Mapping[names.Role, int]
    """Workers of each role, without a surge."""
    templates: Mapping[names.Role, str]
    """Hash of each role's wanted pod template."""
    revision: str
    """Names both of them."""
    rollout: Judgement
    """RolloutComplete."""
    stalled: Judgement | None = None
    scaling: Judgement | None = None
    """ScalingActive; None without autoscaling."""
    monitoring: Judgement | None = None
    """MonitoringActive; None without a PodMonitor."""
    bootstrap: Judgement | None = None
    """BootstrapReachable; None where nobody looked."""
    transfers: Judgement | None = None
    """KVTransferHealthy; None where nobody looked."""


def yes(reason: str, message: str) -> Judgement:
    """It holds."""
    return Judgement(truth="True", reason=reason, message=message)


def no(reason: str, message: str) -> Judgement:
    """It does not."""
    return Judgement(truth="False", reason=reason, message=message)


def unknown(reason: str, message: str) -> Judgement:
    """Nobody can tell."""
    return Judgement(truth="Unknown", reason=reason, message=message)


NOT_LOOKED = unknown("NotObserved", "nobody has looked yet")


def role_available(
    resource: Resource, observed: Observed, role: names.Role, wanted: int
) -> Judgement:
    """PrefillAvailable, DecodeAvailable: at least one worker can take a request."""
    if resource.spec.suspend:
        return no("Suspended", "spec.suspend is set")
    ready, pods = ready_workers(resource, observed, role), observed.pods.get(role, ())
    reason, message = dominant(pods)
    counts = f"{ready} of {wanted} workers are ready"
    if ready >= wanted and wanted:
        return yes("AllAvailable", counts)
    told = f"{counts}; {reason}: {message}" if reason else counts
    if ready:
        return yes("SomeAvailable", told)
    return no(reason or ("Starting" if pods else "NoWorkers"), told)


def ready_workers(resource: Resource, observed: Observed, role: names.Role) -> int:
    """Workers all of whose pods are ready."""
    nodes = resource.role(role).nodes_per_worker
    return sum(
        sum(pod.ready and not pod.terminating for pod in pods) == nodes
        for pods in crews(resource, observed, role).values()
    )


def router_available(resource: Resource, observed: Observed, now: float) -> Judgement | None:
    """RouterAvailable: a router is ready, which it is only while it sees a pair. `now` is in
    seconds since the epoch."""
    if not resource.spec.router.enabled:
        return None
    if resource.spec.suspend:
        return no("Suspended", "spec.suspend is set")
    workload = observed.workloads.get("router")
    if workload is None:
        return no("NoRouter", "the router's Deployment does not exist yet")
    if workload.available:
        return yes("AllAvailable", f"{workload.available} of {workload.replicas} routers are ready")
    reason, message = dominant(observed.pods.get("router", ()))
    if reason:
        return no(reason, message)
    told = "no router sees a prefill and a decode worker that fit together"
    if overdue_in_s(resource, now) <= 0:
        return no("NoPairFits", f"{told}, although both roles have been ready for long: their logs")
    return no("RouterSeesNoPair", told)


def overdue_in_s(resource: Resource, now: float) -> float:
    """Seconds until both roles have been available and the router not for as long as a rollout may
    take; infinite where that is not so."""
    stored = resource.conditions
    waits = {"PrefillAvailable": "True", "DecodeAvailable": "True", "RouterAvailable": "False"}
    found = [stored.get(name, {}) for name in waits]
    if [each.get("status") for each in found] != [*waits.values()]:
        return float("inf")
    since = max(seconds(each["lastTransitionTime"]) or now for each in found)
    return since + resource.spec.rollout.progress_deadline_seconds - now


def rdma_ready(resource: Resource, observed: Observed) -> Judgement | None:
    """RDMAReady: every worker found an ACTIVE port before it started."""
    rdma = resource.spec.rdma
    if rdma.mode == "None":
        return None
    pods = [pod for role in names.ROLES for pod in observed.pods.get(role, ())]
    failed = [pod for pod in pods if pod.reason == "RDMAUnavailable"]
    if failed:
        return no("RDMAUnavailable", f"{failed[0].name}: {failed[0].message}")
    if not rdma.required:
        return unknown("NotChecked", "rdma.required is off, so that nobody looks for a port")
    if pods and all(pod.rdma_checked for pod in pods):
        return yes("PortsActive", "every worker found an ACTIVE port")
    return unknown("NotObserved", "not every worker has looked for its ports yet")


def scaling_active(
    resource: Resource, decided: Judgement | None, optional_kinds: Collection[str]
) -> Judgement | None:
    """ScalingActive: what was decided, unless there is nobody to carry it out."""
    by_keda = [role for role in names.ROLES if _provider(resource, role) == "KEDA"]
    if decided and by_keda and SCALED_OBJECT.name not in optional_kinds:
        roles = " and ".join(by_keda)
        message = f"the cluster has no KEDA that could scale {roles}: install it"
        return no("KEDAMissing", message)
    return decided


def monitoring_active(resource: Resource, optional_kinds: Collection[str]) -> Judgement | None:
    """MonitoringActive: the PodMonitor that was asked for can be made."""
    if not resource.spec.monitoring.pod_monitor:
        return None
    if POD_MONITOR.name in optional_kinds:
        return yes("PodMonitorMade", "Prometheus' operator is told of the pods")
    message = (
        "the cluster knows no PodMonitor, so that nobody scrapes: install Prometheus' operator"
    )
    return no("PodMonitorMissing", message)


def _provider(resource: Resource, role: names.Role) -> str | None:
    scaling = resource.role(role).autoscaling
    return scaling.provider if scaling else None


def ready(resource: Resource, judged: Mapping[str, Judgement], reached: bool) -> Judgement:
    """Ready: this generation was rolled out, and there is a pair and a way to it."""
    if resource.spec.suspend:
        return no("Suspended", "spec.suspend is set")
    for name in ("PrefillAvailable", "DecodeAvailable", "RouterAvailable"):
        part = judged.get(name)
        if part and part.truth != "True":
            return no(part.reason, f"{name} is {part.truth}: {part.message}")
    if not reached:
        rollout = judged["RolloutComplete"]
        return no(rollout.reason, f"the rollout is not complete: {rollout.message}")
    return yes("AllAvailable", "serving")

"""What keeps a deployment from working, and what to do about it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pd_operator import names
from pd_operator.crd import definition
from pd_operator.observed import Pod, seconds
from pd_operator.plugin.facts import Facts
from pd_operator.plugin.fit import Node
from pd_operator.plugin.forecast import Part
from pd_operator.plugin.tree import GOOD, state
from pd_operator.resource import Manifest

LEASE_AGE_S = 60.0
MARKS = {"fine": "✓", "doubt": "!", "broken": "✗"}
HINTS = {
    "InsufficientCapacity": "free or add nodes; `kubectl pdd plan --nodes` says what is short",
    "ImagePullFailed": "check engine.image, and imagePullSecrets for a private registry",
    "ContainerConfigError": "an object that the pod refers to is missing: see the message",
    "CrashLooping": "read `kubectl logs --previous` of the pod",
    "StartupTimeout": "raise startupTimeoutSeconds, or give the model a cache that survives",
    "RDMAUnavailable": "check the device plugin and the port's state (ibstat) on that node",
    "PodFailed": "see `kubectl describe pod`",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    level: Literal["fine", "doubt", "broken"]
    what: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f"\n    → {self.hint}" if self.hint else ""
        return f"{MARKS[self.level]} {self.what}{hint}"


def crd(found: Manifest | None) -> Finding:
    """Is the CRD there, and of this version?"""
    if found is None:
        hint = "helm install the chart, or kubectl apply --server-side -f crds/"
        return Finding(
            level="broken", what="the CRD pddeployments.pdserve.io is missing", hint=hint
        )
    [wanted], versions = definition()["spec"]["versions"], found["spec"]["versions"]
    same = any(_covers(each.get("schema"), wanted["schema"]) for each in versions)
    if same:
        return Finding(level="fine", what="the CRD is that of this version")
    hint = "helm upgrade the chart, or kubectl apply --server-side -f crds/"
    return Finding(level="doubt", what="the CRD is of another version than this plugin", hint=hint)


def _covers(live: Any, wanted: Any) -> bool:
    """True where `live` has all that `wanted` has; the API server adds defaults of its own."""
    if isinstance(wanted, dict):
        known = live if isinstance(live, dict) else {}
        return all(name in known and _covers(known[name], each) for name, each in wanted.items())
    return bool(live == wanted)


def operator(leases: Sequence[Manifest] | None, now: float) -> Finding:
    """Does an operator act? `leases` are those of all operators."""
    if leases is None:
        hint = "ask for the right to list leases in all namespaces"
        return Finding(level="doubt", what="the operator's Lease cannot be read", hint=hint)
    hint = f"kubectl get pods -A -l {names.OPERATOR_SELECTOR}; read its log"
    held = [each["spec"] for each in leases if each["spec"].get("holderIdentity")]
    if not held:
        return Finding(level="broken", what="no operator holds the Lease", hint=hint)
    latest = max(held, key=lambda spec: seconds(spec.get("renewTime")) or 0.0)
    age = now - (seconds(latest.get("renewTime")) or 0.0)
    if age > LEASE_AGE_S:
        what = f"the operator has not renewed its Lease for {age:.0f} s"
        return Finding(level="broken", what=what, hint=hint)
    return Finding(level="fine", what=f"the operator {latest['holderIdentity']} is at work")


def nodes(parts: Sequence[Part], found: Sequence[Node]) -> Iterator[Finding]:
    """Does any node offer the devices that the pods ask for?"""
    asked = sorted({name for part in parts for name in part.asks if "/" in name})
    for name in asked:
        if any(name in node.free for node in found):
            yield Finding(level="fine", what=f"nodes offer {name}")
        else:
            hint = "is its device plugin installed, and does the name match?"
            yield Finding(level="broken", what=f"no node offers {name}", hint=hint)


def deployment(facts: Facts) -> Iterator[Finding]:
    """What its status and its pods say."""
    resource = facts.resource
    if resource.status.get("observedGeneration") != resource.generation:
        what = "the operator has not acted on the latest change"
        yield Finding(level="broken", what=what, hint="see the operator's log")
    troubles = [
        f"{name} is {each['status']}: {each['reason']}: {each['message']}"
        for name, each in sorted(facts.conditions.items())
        if each["status"] not in (GOOD.get(name, "True"), "Unknown")
    ]
    yield from (Finding(level="broken", what=trouble) for trouble in troubles)
    if not troubles and resource.status:
        yield Finding(level="fine", what="all conditions are as they should be")
    for pods in facts.observed.pods.values():
        yield from _pods(pods)


def _pods(pods: Sequence[Pod]) -> Iterator[Finding]:
    for pod in pods:
        if pod.reason and not pod.terminating:
            what = f"{pod.name}: {state(pod)}"
            yield Finding(level="broken", what=what, hint=HINTS.get(pod.reason, ""))


def router(workers: Sequence[Mapping[str, Any]] | None) -> Iterator[Finding]:
    """What a router sees of the workers."""
    if workers is None:
        hint = "it is ready only while it sees a pair; see the pods above"
        yield Finding(level="doubt", what="no router can be asked through the Service", hint=hint)
        return
    healthy = [each for each in workers if each.get("state") == "healthy"]
    keys = {
        role: {each.get("pairing_key") for each in healthy if each.get("role") == role}
        for role in ("prefill", "decode")
    }
    if keys["prefill"] & keys["decode"]:
        yield Finding(
            level="fine", what=f"the router sees {len(healthy)} healthy workers, and pairs"
        )
    else:
        hint = "their settings (page size, dtype, model) must be equal" if healthy else ""
        yield Finding(level="broken", what="the router sees no pair that fits together", hint=hint)
    for each in workers:
        if each.get("state") != "healthy":
            what = f"the router does not use {each.get('url')}: {each.get('state')}"
            yield Finding(level="doubt", what=f"{what}: {each.get('reason', '')}")

"""What kubectl tells of a deployment and its surroundings, gathered once for pure code to judge."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pd_operator import names
from pd_operator.errors import CommandFailed
from pd_operator.kinds import DEPLOYMENT, POD, STATEFUL_SET
from pd_operator.observed import Observed, observe
from pd_operator.plugin.kubectl import Kubectl
from pd_operator.resource import Manifest, Resource
from pd_operator.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One deployment as it is."""

    resource: Resource
    observed: Observed
    pods: Sequence[Manifest]

    @property
    def conditions(self) -> dict[str, Manifest]:
        """By type."""
        return self.resource.conditions


def gather(kubectl: Kubectl, body: Manifest) -> Facts:
    """Everything of one deployment. Raises CommandFailed, InvalidSpec."""
    resource, store = Resource.parse(body), Store()
    labels = f"{names.DEPLOYMENT}={resource.name}"
    pods = []
    found = kubectl.list("statefulsets,deployments,pods", "-l", labels)
    for manifest in found:
        kind = {each.name: each for each in (STATEFUL_SET, DEPLOYMENT, POD)}[manifest["kind"]]
        store.put(kind, manifest)
        pods += [manifest] if kind == POD else []
    return Facts(resource=resource, observed=observe(resource, store), pods=pods)


def routed(kubectl: Kubectl, resource: Resource) -> list[dict[str, Any]] | None:
    """The workers as a router sees them; None where none can be asked."""
    path = f"/api/v1/namespaces/{resource.namespace}/services/{resource.name}:http/proxy/workers"
    try:
        answer = json.loads(kubectl.run("get", "--raw", path))
    except (CommandFailed, json.JSONDecodeError):
        return None
    workers = answer.get("workers") if isinstance(answer, dict) else answer
    return workers if isinstance(workers, list) else None

"""Where a role's pods go in relation to the other role's."""

from __future__ import annotations

from pd_operator import names
from pd_operator.api.markers import Need
from pd_operator.objects.meta import merge
from pd_operator.resource import Manifest, Resource

HOSTNAME = "kubernetes.io/hostname"


def affinity(resource: Resource, role: names.Role) -> Manifest:
    """The user's own, with what `topology` asks for appended; empty where neither says a thing."""
    topology, own = resource.spec.topology, resource.role(role).affinity or {}
    other: names.Role = "decode" if role == "prefill" else "prefill"
    # All pods of the deployment: a term that also fits the pod itself lets the first one start.
    together = {names.DEPLOYMENT: resource.name}
    merged = _add(own, "podAffinity", topology.colocate, topology.key or HOSTNAME, together)
    apart = names.selector(resource.name, other)
    return _add(merged, "podAntiAffinity", topology.separate_nodes, HOSTNAME, apart)


def _add(own: Manifest, kind: str, need: Need, key: str, labels: dict[str, str]) -> Manifest:
    if need == "None":
        return own
    term: Manifest = {"topologyKey": key, "labelSelector": {"matchLabels": labels}}
    field = "requiredDuringSchedulingIgnoredDuringExecution"
    if need == "Preferred":
        field = "preferredDuringSchedulingIgnoredDuringExecution"
        term = {"weight": 100, "podAffinityTerm": term}
    terms = [*own.get(kind, {}).get(field, []), term]
    merged: Manifest = merge(own, {kind: {field: terms}})
    return merged

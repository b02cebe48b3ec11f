"""The chart grants exactly what the operator asks for at its start, and what it hands on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from pd_operator.kinds import OPTIONAL
from pd_operator.permissions import needs
from tests.chart.conftest import Render

pytestmark = pytest.mark.cluster

Grant = tuple[str, str, str]
"""Group, resource, verb."""

HANDED_ON = {("discovery.k8s.io", "endpointslices", verb) for verb in ("get", "list", "watch")} | {
    ("pdserve.io", "pddeployments/finalizers", "update")
}
"""What the operator grants to routers, and what owner references may ask for."""


def granted(rules: Iterable[dict[str, Any]]) -> set[Grant]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize("namespaces", [(), ("llm",)], ids=["cluster", "namespaced"])
def test_grants_equal_needs(render: Render, namespaces: tuple[str, ...]) -> None:
    kind = "Role" if namespaces else "ClusterRole"
    manifests = render(watchNamespaces=[*namespaces])
    [role] = [
        one
        for one in manifests
        if one["kind"] == kind and one["metadata"]["name"] == "pdserve-operator"
    ]
    asked = {
        (need.kind.group, "/".join(filter(None, (need.kind.plural, need.subresource))), need.verb)
        for need in needs(namespaces, frozenset(OPTIONAL), "")
    }
    assert granted(role["rules"]) == asked | HANDED_ON

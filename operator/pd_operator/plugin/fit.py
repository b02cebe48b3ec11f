"""Which of a deployment's pods would find a node now. Pure: first fit, as a forecast.

It looks at requests, node selectors and taints; affinity and topology are the scheduler's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pd_operator.plugin.forecast import Part, requests
from pd_operator.quantity import parse
from pd_operator.resource import Manifest

ENDED = ("Succeeded", "Failed")


@dataclass(slots=True)
class Node:
    """A node and what is free on it."""

    name: str
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, Any]]
    free: dict[str, Decimal]

    def takes(self, part: Part) -> bool:
        """True where one pod of `part` may run here."""
        pod = part.template["spec"]
        wanted = pod.get("nodeSelector", {})
        return (
            all(self.labels.get(name) == value for name, value in wanted.items())
            and all(tolerated(taint, pod.get("tolerations", [])) for taint in self.taints)
            and all(self.free.get(n, Decimal(0)) >= v for n, v in self._asks(part).items())
        )

    def place(self, part: Part) -> None:
        """Count one pod as running here."""
        for name, value in self._asks(part).items():
            self.free[name] = self.free.get(name, Decimal(0)) - value

    def _asks(self, part: Part) -> dict[str, Decimal]:
        return {"pods": Decimal(1), **part.asks}


def tolerated(taint: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """True where a taint keeps no pod with these tolerations away."""
    if taint.get("effect") == "PreferNoSchedule":
        return True
    return any(_matches(taint, each) for each in tolerations)


def _matches(taint: Mapping[str, Any], toleration: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, taint.get("effect")):
        return False
    if toleration.get("key") is None:
        return toleration.get("operator") == "Exists"
    same = toleration["key"] == taint["key"]
    exists = toleration.get("operator") == "Exists"
    return same and (exists or toleration.get("value", "") == taint.get("value", ""))


def nodes_of(nodes: Sequence[Manifest], pods: Sequence[Manifest]) -> list[Node]:
    """Nodes that take pods, with what the running ones leave."""
    found = {
        node["metadata"]["name"]: Node(
            node["metadata"]["name"],
            node["metadata"].get("labels", {}),
            node["spec"].get("taints", []),
            {name: parse(value) for name, value in node["status"]["allocatable"].items()},
        )
        for node in nodes
        if not node["spec"].get("unschedulable")
    }
    for pod in pods:
        node = found.get(pod["spec"].get("nodeName", ""))
        if node is None or pod.get("status", {}).get("phase") in ENDED:
            continue
        for name, value in {"pods": Decimal(1), **requests(pod["spec"])}.items():
            node.free[name] = node.free.get(name, Decimal(0)) - value
    return list(found.values())


def placed(part: Part, nodes: Sequence[Node]) -> dict[str, int]:
    """How many pods of a part go to which node; takes their room."""
    found: dict[str, int] = {}
    for _ in range(part.pods):
        node = next((each for each in nodes if each.takes(part)), None)
        if node is None:
            break
        node.place(part)
        found[node.name] = found.get(node.name, 0) + 1
    return found


def report(parts: Sequence[Part], nodes: Sequence[Node]) -> list[str]:
    """A line for each part."""
    return [_line(part, placed(part, nodes), nodes) for part in parts]


def _line(part: Part, found: Mapping[str, int], nodes: Sequence[Node]) -> str:
    count = sum(found.values())
    where = ", ".join(f"{name} ×{number}" for name, number in found.items())
    line = f"{part.name}: {count} of {part.pods} pods find a node" + (
        f" ({where})" if where else ""
    )
    return line if count == part.pods else f"{line}; {_lacking(part, nodes)}"


def _lacking(part: Part, nodes: Sequence[Node]) -> str:
    """What most nodes have too little of."""
    short = [
        name
        for name, value in part.asks.items()
        if all(node.free.get(name, Decimal(0)) < value for node in nodes)
    ]
    return f"no node has enough {', '.join(short)}" if short else "nodes do not match or are full"

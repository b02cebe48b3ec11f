"""What the operator must be allowed to do; asked of the API server before anything is done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from pd_operator.cluster import Cluster
from pd_operator.errors import OperatorError
from pd_operator.kinds import (
    ALWAYS,
    CONTROLLER_REVISION,
    EVENT,
    LEASE,
    PDDEPLOYMENT,
    POD,
    SECRET,
    Kind,
)

READ = ("get", "list", "watch")
OWN = (*READ, "create", "patch", "delete")


class Need(NamedTuple):
    """One thing to be allowed."""

    verb: str
    kind: Kind
    subresource: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        what = "/".join(part for part in (self.kind.plural, self.subresource) if part)
        group = f".{self.kind.group}" if self.kind.group else ""
        return f"{self.verb} {what}{group}" + (f" in {self.namespace}" if self.namespace else "")


def needs(namespaces: tuple[str, ...], optional: frozenset[Kind], lease: str) -> Iterator[Need]:
    """All of them; `lease` is the namespace of the Lease, empty without election."""
    for namespace in namespaces or ("",):
        for verb in READ:
            yield Need(verb, PDDEPLOYMENT, namespace=namespace)
        yield Need("patch", PDDEPLOYMENT, "status", namespace)
        for verb in (*READ, "patch", "delete"):
            yield Need(verb, POD, namespace=namespace)
        for verb in ("get", "create"):
            yield Need(verb, SECRET, namespace=namespace)
        for verb in ("list", "create", "delete"):
            yield Need(verb, CONTROLLER_REVISION, namespace=namespace)
        yield Need("create", EVENT, namespace=namespace)
        for kind in (*ALWAYS, *sorted(optional)):
            for verb in OWN:
                yield Need(verb, kind, namespace=namespace)
    if lease:
        yield Need("create", LEASE, namespace=lease)


async def check(cluster: Cluster, wanted: list[Need]) -> None:
    """Raises OperatorError naming what is not allowed."""
    answers = await asyncio.gather(
        *(cluster.may(need.verb, need.kind, need.namespace, need.subresource) for need in wanted)
    )
    missing = [str(need) for need, allowed in zip(wanted, answers, strict=True) if not allowed]
    if missing:
        raise OperatorError(f"the operator's ServiceAccount may not: {'; '.join(missing)}")

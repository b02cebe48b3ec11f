"""What an engine wants: command lines, environment and probe paths of workers and router."""

from __future__ import annotations

from pd_operator.engines.base import Engine
from pd_operator.engines.pdserve import Pdserve
from pd_operator.engines.sglang import SGLang
from pd_operator.resource import Resource

ENGINES: dict[str, Engine] = {"Pdserve": Pdserve(), "SGLang": SGLang()}


def engine_of(resource: Resource) -> Engine:
    """The engine that a deployment runs."""
    return ENGINES[resource.spec.engine.type]

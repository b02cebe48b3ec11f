"""Which workers may serve a request together, and why none can. Pure functions.

Prefill and decode pair only when their pairing keys are equal; a unified worker stands alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pd_worker.router.worker import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Who serves one attempt of a request; `prefill` is None where `decode` is a unified worker."""

    prefill: Worker | None
    decode: Worker

    def __str__(self) -> str:
        urls = [worker.spec.url for worker in (self.prefill, self.decode) if worker]
        return "|".join(urls)


def of_role(workers: Iterable[Worker], role: str) -> list[Worker]:
    return [worker for worker in workers if worker.spec.role == role]


def heads(workers: Sequence[Worker]) -> list[Worker]:
    """Workers that can take a prompt: unified ones, and prefill ones that have a partner."""
    keys = {worker.key for worker in of_role(workers, "decode")}
    paired = [worker for worker in of_role(workers, "prefill") if worker.key in keys]
    return paired + of_role(workers, "unified")


def partners(workers: Sequence[Worker], prefill: Worker) -> list[Worker]:
    """The decode workers that pair with `prefill`."""
    return [worker for worker in of_role(workers, "decode") if worker.key == prefill.key]


def why_none(workers: Sequence[Worker]) -> str:
    """Why no request can be served; empty when one can."""
    healthy = [worker for worker in workers if worker.state == "healthy"]
    if heads(healthy):
        return ""
    if not workers:
        return "no workers are listed"
    missing = [role for role in ("prefill", "decode") if not of_role(healthy, role)]
    if missing or of_role(workers, "unified"):
        return f"no {' and no '.join(missing)} worker is ready{_states(workers)}"
    keys = [f"{role} has {_keys(of_role(healthy, role))}" for role in ("prefill", "decode")]
    return f"no prefill and decode worker share a pairing key: {', '.join(keys)}"


def _states(workers: Iterable[Worker]) -> str:
    unready = [worker for worker in workers if worker.state != "healthy"]
    told = [f"{worker.spec.url} is {worker.state} ({worker.reason})" for worker in unready]
    return f": {'; '.join(told)}" if told else ""


def _keys(workers: Iterable[Worker]) -> str:
    return ", ".join(f"{worker.key} ({worker.spec.url})" for worker in workers)

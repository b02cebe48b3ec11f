"""Each role grows and shrinks by itself: by hand, by an HPA and by the operator's own scaler."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.client import until
from tests.e2e.kubernetes.conftest import Space, load

pytestmark = [pytest.mark.node, pytest.mark.model, pytest.mark.timeout(600)]

QUICK = {"scaleUpStabilizationSeconds": 0, "scaleDownStabilizationSeconds": 20}
LONG_ANSWERS: dict[str, Any] = {"clients": 4, "words": 2, "tokens": 48}
LONG_PROMPTS: dict[str, Any] = {"clients": 4, "words": 100, "tokens": 1, "kinds": 10_000}
"""Always others: what is in the prefix cache is no work for prefill."""


def scaled(provider: str, *metrics: dict[str, Any]) -> dict[str, Any]:
    """autoscaling of a role between 1 and 2 workers."""
    bounds = {"minReplicas": 1, "maxReplicas": 2}
    return {"autoscaling": {"provider": provider, **bounds, **QUICK, "metrics": list(metrics)}}


def replicas(space: Space, role: str) -> int:
    """Of a role's StatefulSet."""
    return int(space.kubectl("get", "sts", f"smollm2-{role}", "-o=jsonpath={.spec.replicas}"))


def becomes(space: Space, role: str, count: int) -> None:
    """Wait until somebody has scaled the role so."""
    until(f"{count} x {role}", lambda: replicas(space, role) == count, timeout_s=180)


def both_small(space: Space) -> None:
    """Wait until idle workers are gone again."""
    becomes(space, "prefill", 1)
    becomes(space, "decode", 1)
    space.size("1P1D")


def test_kubectl_scale(space: Space, served: str) -> None:
    space.edit({role: scaled("External") for role in ("prefill", "decode")})
    with load(space, served) as clients:
        for role, size in (("decode", "1P2D"), ("prefill", "2P2D")):
            space.kubectl("scale", f"sts/smollm2-{role}", "--replicas=2")
            space.size(size)
            clients.more(3)
        for role, size in (("decode", "2P1D"), ("prefill", "1P1D")):
            space.kubectl("scale", f"sts/smollm2-{role}", "--replicas=1")
            space.size(size)


def test_a_horizontal_pod_autoscaler_per_role(space: Space, served: str) -> None:
    busy, never = ({"type": "CPU", "target": target} for target in (40, 100_000))
    space.edit({"prefill": scaled("HPA", never), "decode": scaled("HPA", busy)})
    with load(space, served, **LONG_ANSWERS) as clients:
        becomes(space, "decode", 2)
        space.size("1P2D")
        clients.more(4)
    both_small(space)
    space.edit({"prefill": scaled("HPA", busy), "decode": scaled("HPA", never)})
    with load(space, served, **LONG_PROMPTS):
        becomes(space, "prefill", 2)
        space.size("2P1D")
    both_small(space)


def test_the_builtin_scaler_gives_each_role_what_it_lacks(space: Space, served: str) -> None:
    space.edit(
        {
            "prefill": scaled("Builtin", {"type": "PrefillTokenRate", "target": 150}),
            "decode": scaled("Builtin", {"type": "RunningRequests", "target": 2}),
        }
    )
    with load(space, served, **LONG_ANSWERS):
        becomes(space, "decode", 2)
        space.size("1P2D")
        assert replicas(space, "prefill") == 1
    both_small(space)
    with load(space, served, **LONG_PROMPTS):
        becomes(space, "prefill", 2)
        space.size("2P1D")
        assert replicas(space, "decode") == 1
    both_small(space)

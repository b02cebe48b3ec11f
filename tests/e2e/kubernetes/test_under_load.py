"""Whatever is done to a deployment while clients ask: no request fails, and no answer changes."""

from __future__ import annotations

import pytest

from tests.cluster.client import until
from tests.e2e.kubernetes.conftest import SYSTEM, Space, load

pytestmark = [pytest.mark.node, pytest.mark.model, pytest.mark.timeout(600)]


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_role_grows_and_shrinks(space: Space, served: str, role: str) -> None:
    larger = "2P1D" if role == "prefill" else "1P2D"
    with load(space, served) as clients:
        space.edit({role: {"replicas": 2}})
        space.size(larger)
        clients.more(6)
        space.edit({role: {"replicas": 1}})
        space.size("1P1D")


@pytest.mark.parametrize("part", ["prefill", "decode", "router"])
def test_the_only_pod_of_a_part_is_deleted(space: Space, served: str, part: str) -> None:
    mine = ("pod", "-l", f"pdserve.io/deployment=smollm2,pdserve.io/role={part}")
    with load(space, served):
        [before] = space.kubectl("get", *mine, "-o", "jsonpath={.items[*].metadata.uid}").split()
        space.kubectl("delete", *mine)
        space.kubectl("wait", "--for=create", *mine, "--timeout=1m")
        space.kubectl("wait", "--for=condition=Ready", *mine, "--timeout=2m")
        assert before not in space.kubectl("get", *mine, "-o", "jsonpath={.items[*].metadata.uid}")


@pytest.mark.parametrize(
    "args",
    [["--log-level=debug"], ["--page-size=16"]],
    ids=["pairs with the old", "pairs with its like alone"],
)
def test_a_rolling_update(space: Space, served: str, args: list[str]) -> None:
    common = space.client.get("pdd", "smollm2", "-n", space.name)["spec"]["engine"]["args"]
    with load(space, served):
        space.edit({"engine": {"args": [*common, *args]}})
        generation = space.kubectl("get", "pdd", "smollm2", "-o=jsonpath={.metadata.generation}")
        seen = f"--for=jsonpath={{.status.observedGeneration}}={generation}"
        space.kubectl("wait", seen, "pdd/smollm2", "--timeout=1m")
        complete = "--for=condition=RolloutComplete"
        space.kubectl("wait", complete, "pdd/smollm2", "--timeout=5m", timeout_s=310)
        space.size("1P1D")
        pods = "-l", "pdserve.io/role in (prefill,decode)", "-n", space.name
        until("two pods", lambda: len(space.client.get("pod", *pods)) == 2, timeout_s=120)
        found = [pod["spec"]["containers"][0]["args"] for pod in space.client.get("pod", *pods)]
        assert [flags[-len(args) :] for flags in found] == [args, args]


def test_the_operator_restarts(space: Space, served: str) -> None:
    with load(space, served):
        operator = ("-n", SYSTEM, "deployment/pdserve")
        space.client.kubectl("rollout", "restart", *operator)
        space.edit({"decode": {"replicas": 2}})
        space.client.kubectl("rollout", "status", *operator, "--timeout=3m", timeout_s=190)
        space.size("1P2D")
        space.edit({"decode": {"replicas": 1}})
        space.size("1P1D")

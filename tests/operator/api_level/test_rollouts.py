"""Changes of the pods, carried out by the real StatefulSet controller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pd_operator import names
from pd_operator.kinds import DEPLOYMENT, EVENT, POD, SECRET
from pd_operator.service import Service
from tests.operator.api_level.kubelet import Kubelet
from tests.operator.api_level.operators import Operator
from tests.operator.api_level.space import Space, until

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("kubelet")]


async def images(space: Space, role: str) -> dict[str, str]:
    """By pod that is not ending."""
    return {
        pod["metadata"]["name"]: pod["spec"]["containers"][0]["image"]
        for pod in await space.list(POD)
        if pod["metadata"]["labels"].get(names.ROLE) == role
        and "deletionTimestamp" not in pod["metadata"]
    }


async def rolled_out(space: Space, image: str, size: str = "1P2D/1P2D") -> None:
    async def done() -> bool:
        status = await space.status()
        found = [set((await images(space, role)).values()) for role in names.ROLES]
        return bool(found == [{image}, {image}] and status["size"] == size)

    await until(f"all pods run {image}", done)
    await space.condition("Ready", "True")
    await space.condition("RolloutComplete", "True")


class Witness:
    """Counts, all the time, the ready workers of each image that have a partner."""

    def __init__(self, space: Space) -> None:
        self._space, self.least = space, 99

    async def run(self) -> None:
        while True:
            ready: dict[str, set[str]] = {}
            for pod in await self._space.list(POD):
                role = pod["metadata"]["labels"].get(names.ROLE)
                conditions = pod["status"].get("conditions", [])
                serves = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
                if serves and role in names.ROLES and "deletionTimestamp" not in pod["metadata"]:
                    image = pod["spec"]["containers"][0]["image"]
                    ready.setdefault(image, set()).add(role)
            self.least = min(self.least, sum(len(roles) == 2 for roles in ready.values()))
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("decode", [1, 3])
async def test_a_new_image_arrives_without_a_moment_without_a_pair(
    space: Space, operator: Service, decode: int
) -> None:
    await space.create(decode={"gpus": 0, "replicas": decode})
    await space.condition("Ready", "True")
    witness = Witness(space)
    watching = asyncio.create_task(witness.run())
    await space.edit(engine={"image": "worker:2"})
    await rolled_out(space, "worker:2", f"1P{decode}D/1P{decode}D")
    watching.cancel()
    assert witness.least >= 1
    assert await space.replicas("prefill") == 1


async def test_an_edit_of_one_role_restarts_only_that_role(space: Space, operator: Service) -> None:
    await space.create()
    await space.condition("Ready", "True")

    async def uids(role: str) -> set[str]:
        pods = await space.list(POD)
        return {p["metadata"]["uid"] for p in pods if p["metadata"]["labels"][names.ROLE] == role}

    decode, prefill = await uids("decode"), await uids("prefill")
    await space.edit(prefill={"args": ["--chunked-prefill-size=64"]})

    async def replaced() -> bool:
        found = await uids("prefill")
        return not found & prefill and len(found) == 1

    await until("a new prefill pod", replaced)
    await space.condition("RolloutComplete", "True")
    assert await uids("decode") == decode


async def test_ready_is_false_until_the_new_generation_serves(
    space: Space, kubelet: Kubelet, operator: Service
) -> None:
    await space.create()
    await space.condition("Ready", "True")
    kubelet.verdicts["worker:2"] = "starting"
    await space.edit(engine={"image": "worker:2"})
    await space.observed()
    conditions = await space.conditions()
    assert conditions["Ready"] == "False Updating"
    assert conditions["Reconciling"].startswith("True")
    kubelet.verdicts.clear()
    await rolled_out(space, "worker:2")


async def test_a_bad_image_keeps_the_old_pair_and_a_good_one_converges(
    space: Space, kubelet: Kubelet, operator: Service
) -> None:
    await space.create()
    await space.condition("Ready", "True")
    kubelet.verdicts["bad"] = "crashing"
    await space.edit(engine={"image": "bad"})

    await space.condition("RolloutComplete", "False UpdatedWorkersBroken")
    told = {c["type"]: c["message"] for c in (await space.status())["conditions"]}
    assert "CrashLooping" in told["RolloutComplete"]
    old = [set((await images(space, role)).values()) for role in names.ROLES]
    assert all("worker:1" in found for found in old)
    await space.edit(engine={"image": "worker:3"})
    await rolled_out(space, "worker:3")


async def test_a_way_back_converges(space: Space, kubelet: Kubelet, operator: Service) -> None:
    await space.create()
    await space.condition("Ready", "True")
    kubelet.verdicts["bad"] = "crashing"
    await space.edit(engine={"image": "bad"})

    async def begun() -> bool:
        return "bad" in (await images(space, "prefill")).values()

    await until("a new pod", begun)
    await space.edit(engine={"image": "worker:1"})
    await rolled_out(space, "worker:1")


async def test_no_progress_is_stalled_and_progress_cures_it(
    space: Space, kubelet: Kubelet, operator: Service
) -> None:
    await space.create(rollout={"progressDeadlineSeconds": 1})
    await space.condition("Ready", "True")
    kubelet.verdicts["worker:2"] = "unschedulable"
    await space.edit(engine={"image": "worker:2"})
    await space.condition("Stalled", "True ProgressDeadlineExceeded")
    kubelet.verdicts.clear()
    await rolled_out(space, "worker:2")
    assert "Stalled" not in await space.conditions()


async def test_a_pause_holds_and_its_end_goes_on(space: Space, operator: Service) -> None:
    await space.create()
    await space.condition("Ready", "True")
    await space.edit(engine={"image": "worker:2"}, rollout={"paused": True})
    await space.condition("RolloutComplete", "False Paused")
    assert set((await images(space, "decode")).values()) == {"worker:1"}
    await space.edit(rollout={"paused": False})
    await rolled_out(space, "worker:2")


async def test_an_operator_restarted_in_the_middle_goes_on(
    space: Space, kubelet: Kubelet, operators: Operator
) -> None:
    await operators.start()
    await space.create()
    await space.condition("Ready", "True")
    kubelet.verdicts["worker:2"] = "starting"
    await space.edit(engine={"image": "worker:2"})

    async def begun() -> bool:
        return "worker:2" in (await images(space, "prefill")).values()

    await until("a new pod", begun)
    await operators.stop()
    kubelet.verdicts.clear()
    await operators.start()
    await rolled_out(space, "worker:2")


async def test_without_room_for_a_surge_a_pair_is_replaced_in_place(
    space: Space, operator: Service
) -> None:
    rollout: dict[str, Any] = {"maxSurge": 0, "maxUnavailable": 1}
    await space.create(decode={"gpus": 0}, rollout=rollout)
    await space.condition("Ready", "True")
    await space.edit(engine={"image": "worker:2"})
    await rolled_out(space, "worker:2", "1P1D/1P1D")


async def test_pairs_that_never_fit_are_told_of_when_they_are_overdue(
    space: Space, operator: Service, kubelet: Kubelet
) -> None:
    kubelet.verdicts["router:1"] = "starting"  # as it is ready only when it sees a pair
    await space.create(router={"image": "router:1"}, rollout={"progressDeadlineSeconds": 4})
    await space.condition("RouterAvailable", "False RouterSeesNoPair")
    await space.condition("RolloutComplete", "True")
    await space.condition("Ready", "False NoPairFits")


async def secrets(space: Space) -> set[str]:
    """Names of those that the workers which are not ending, and the router, take."""
    pods = [p for p in await space.list(POD) if "deletionTimestamp" not in p["metadata"]]
    workers = [p["spec"] for p in pods if p["metadata"]["labels"].get(names.ROLE) in names.ROLES]
    router = (await space.get(DEPLOYMENT, "m-router"))["spec"]["template"]["spec"]
    return {
        env["valueFrom"]["secretKeyRef"]["name"]
        for spec in (*workers, router)
        for env in spec["containers"][0]["env"]
        if env["name"] == "PDSERVE_SECRET"
    }


async def test_a_lost_secret_leads_every_part_to_another_one(
    space: Space, operators: Operator
) -> None:
    await operators.start()
    await space.create()
    await space.condition("Ready", "True")
    first = await space.status()
    old = (await space.get(SECRET, "m-keys"))["metadata"]["uid"]
    await space.cluster.delete(SECRET, space.namespace, "m-keys", old)
    pods = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in await space.list(POD)}
    await space.cluster.delete(POD, space.namespace, "m-decode-1", pods["m-decode-1"])

    async def told() -> bool:
        return bool((await space.status()).get("secret"))

    await until("another Secret", told)
    renewed = (await space.status())["secret"]
    await operators.stop()  # the next one knows of it by the status only
    await operators.start()

    async def replaced() -> bool:
        status, found = await space.status(), await secrets(space)
        return bool(found == {renewed} and status["size"] == "1P2D/1P2D")

    await until("all parts take it", replaced)
    await space.condition("RolloutComplete", "True")
    status = await space.status()
    assert status["secret"] == renewed != "m-keys"
    assert status["currentRevision"] == status["updateRevision"] != first["currentRevision"]
    assert (await space.get(SECRET, renewed))["immutable"] is True
    events, _ = await space.cluster.list(EVENT, space.namespace)
    assert [each["type"] for each in events if each["reason"] == "SecretLost"] == ["Warning"]

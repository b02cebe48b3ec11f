"""A small kubelet: pods run, or not, as a test says."""

from __future__ import annotations

import asyncio
import contextlib
import time

from pd_operator.errors import ApiError, NotFound
from pd_operator.kinds import POD, SECRET
from pd_operator.resource import Manifest
from tests.operator.api_level.space import Space


class Kubelet:
    """Makes pods run, or not: `verdict` names the state for an image. None starts without the
    Secret that it takes variables from."""

    def __init__(self, space: Space) -> None:
        self._space = space
        self.verdicts: dict[str, str] = {}
        """By image: `ready` (the default), `starting`, `crashing` or `unschedulable`."""
        self.seen: set[str] = set()
        """Images of pods that became ready."""

    async def run(self) -> None:
        while True:
            with contextlib.suppress(ApiError):
                items, _ = await self._space.cluster.list(POD, self._space.namespace)
                for pod in items:
                    if "deletionTimestamp" not in pod["metadata"]:
                        await self._tend(pod)
            await asyncio.sleep(0.05)

    async def _tend(self, pod: Manifest) -> None:
        container = pod["spec"]["containers"][0]
        verdict = self.verdicts.get(container["image"], "ready")
        if verdict == "ready" != pod["status"].get("message") and await self._lacks_secret(
            container
        ):
            verdict = "unconfigured"
        if verdict == "ready":
            self.seen.add(container["image"])
        if pod["status"].get("message") == verdict:
            return
        change = {"status": {"message": verdict, **_status(verdict, container["name"])}}
        await self._space.cluster.patch(
            POD, self._space.namespace, pod["metadata"]["name"], change, subresource="status"
        )

    async def _lacks_secret(self, container: Manifest) -> bool:
        sources = [env.get("valueFrom", {}) for env in container.get("env", [])]
        names = {each["secretKeyRef"]["name"] for each in sources if "secretKeyRef" in each}
        for name in names:
            try:
                await self._space.get(SECRET, name)
            except NotFound:
                return True
        return False


def _status(verdict: str, container: str) -> Manifest:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    ready = {"type": "Ready", "status": "True" if verdict == "ready" else "False"}
    state: Manifest = {"running": {"startedAt": now}}
    if verdict == "unschedulable":
        scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        return {"phase": "Pending", "conditions": [scheduled]}
    if verdict == "crashing":
        state = {"waiting": {"reason": "CrashLoopBackOff"}}
    if verdict == "unconfigured":
        state = {"waiting": {"reason": "CreateContainerConfigError"}}
    status = {
        "name": container, "image": "i", "imageID": "", "ready": verdict == "ready",
        "restartCount": int(verdict == "crashing"), "state": state,
    }  # fmt: skip
    return {
        "phase": "Running",
        "podIP": "10.0.0.9",
        "conditions": [ready | {"lastTransitionTime": now}],
        "containerStatuses": [status],
    }

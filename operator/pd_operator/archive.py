"""Writes down each spec that workers were made of, so that a person can go back to it."""

from __future__ import annotations

from pd_operator import revisions
from pd_operator.cluster import Cluster
from pd_operator.kinds import CONTROLLER_REVISION
from pd_operator.resource import Manifest, Resource
from pd_operator.telemetry import Telemetry


class Archive:
    """Keeps a deployment's revisions. Nothing else depends on them."""

    def __init__(self, cluster: Cluster, telemetry: Telemetry) -> None:
        self._cluster, self._telemetry = cluster, telemetry

    async def keep(self, resource: Resource, body: Manifest, mark: str) -> None:
        """Make this spec the latest revision, named by `mark`. Called when it is wanted first, and
        without harm again. Raises ApiError."""
        namespace, name = resource.namespace, f"{resource.name}-{mark}"
        known, _ = await self._cluster.list(
            CONTROLLER_REVISION, namespace, revisions.selector(resource.name)
        )
        number = revisions.next_number(known)
        mine = next((each for each in known if each["metadata"]["name"] == name), None)
        if mine is None:
            made = revisions.revision(resource, body["spec"], mark, number)
            known.append(await self._cluster.create(CONTROLLER_REVISION, made))
            self._telemetry.wrote("create")
        elif int(mine["revision"]) + 1 < number:
            await self._cluster.patch(CONTROLLER_REVISION, namespace, name, {"revision": number})
            mine["revision"] = number
            self._telemetry.wrote("revision")
        for old in revisions.surplus(known, resource.spec.rollout.revision_history_limit):
            meta = old["metadata"]
            await self._cluster.delete(CONTROLLER_REVISION, namespace, meta["name"], meta["uid"])
            self._telemetry.wrote("delete")

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
        latest = max(known, key=revisions.number, default=None)
        if latest and latest["metadata"]["name"] == name:
            return
        for before in known:
            if before["metadata"]["name"] == name:  # a revision's number cannot be changed
                await self._delete(before)
        number = revisions.next_number(known)
        made = revisions.revision(resource, body["spec"], mark, number)
        await self._cluster.create(CONTROLLER_REVISION, made)
        self._telemetry.wrote("create")
        kept = [made, *(each for each in known if each["metadata"]["name"] != name)]
        for old in revisions.surplus(kept, resource.spec.rollout.revision_history_limit):
            await self._delete(old)

    async def _delete(self, revision: Manifest) -> None:
        meta = revision["metadata"]
        await self._cluster.delete(
            CONTROLLER_REVISION, meta["namespace"], meta["name"], meta["uid"]
        )
        self._telemetry.wrote("delete")

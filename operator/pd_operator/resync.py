"""Now and then compares what kopf told with a list of its own, and looks at everything anew.

It makes up for a lost event, and notices a watch that tells nothing more: then `problem` says so,
and the liveness probe has the operator restarted.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pd_operator.cluster import Cluster
from pd_operator.errors import ApiError
from pd_operator.kinds import PDDEPLOYMENT
from pd_operator.resource import Key
from pd_operator.store import Store, packed

logger = logging.getLogger(__name__)

PATIENCE_S = 20.0
"""A watch is at most so far behind a list."""


class Resync:
    """Knows the newest version of each deployment that kopf has told."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        look: Callable[[Key, float], None],
        namespaces: Sequence[str],
        interval_s: float,
    ) -> None:
        self._cluster, self._store, self._look = cluster, store, look
        self._namespaces, self._interval_s = namespaces or ("",), interval_s
        self._told: dict[Key, int] = {}
        self._late: dict[Key, int] = {}
        """Versions that kopf had not told at the last comparison."""

    @property
    def problem(self) -> str:
        """What kopf's watch does not tell; empty again once it has caught up."""
        late = self._behind(self._late)
        return f"kopf's watch has not told of {late[0]}" if late else ""

    def told(self, event: str, body: dict[str, Any]) -> None:
        """What kopf says of one deployment."""
        meta = body["metadata"]
        key = Key(meta["namespace"], meta["name"])
        if event == "DELETED":
            self._told.pop(key, None)
            self._store.drop(PDDEPLOYMENT, body)
        else:
            self._told[key] = int(meta["resourceVersion"])
            self._store.put(PDDEPLOYMENT, body)
        self._look(key, 0.0)

    async def run(self) -> None:
        """Never ends."""
        while True:
            await asyncio.sleep(self._interval_s * random.uniform(0.8, 1.0))
            try:
                await self.check()
            except ApiError as error:
                logger.warning("resync: %s", error)

    async def refresh(self, spread_s: float = 0.0) -> dict[Key, int]:
        """Make the store equal to a list, and have all looked at within `spread_s`; the listed
        versions. Raises ApiError."""
        versions: dict[Key, int] = {}
        for namespace in self._namespaces:
            entries, version = await self._cluster.collect(
                PDDEPLOYMENT, partial(packed, PDDEPLOYMENT), namespace
            )
            versions |= {Key(entry.namespace, entry.name): entry.version for entry in entries}
            for key in self._store.replace(PDDEPLOYMENT, entries, namespace, version):
                self._look(key, random.uniform(0.0, spread_s))
        return versions

    async def check(self) -> None:
        """One comparison. Raises ApiError."""
        versions = await self.refresh(self._interval_s / 10)
        if self._behind(versions):
            await asyncio.sleep(PATIENCE_S)
        self._late = {key: versions[key] for key in self._behind(versions)}
        for key in [key for key in self._told if key not in versions]:
            if not self._store.has(key):
                del self._told[key]

    def _behind(self, versions: dict[Key, int]) -> list[Key]:
        """Deployments that exist still and of which kopf knows an older version or nothing."""
        return [
            key
            for key, version in versions.items()
            if self._told.get(key, 0) < version and self._store.has(key)
        ]

"""Events: what a person sees under `kubectl describe`."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime

from pd_operator import names
from pd_operator.cluster import Cluster
from pd_operator.errors import ApiError
from pd_operator.kinds import EVENT
from pd_operator.resource import Manifest, Resource
from pd_operator.status import News

logger = logging.getLogger(__name__)

CONTROLLER = f"{names.GROUP}/operator"
LONGEST_NOTE = 1000
"""Bytes; the API server takes 1,024."""
SAME_AGAIN_S = 60.0
"""Between two events of one reason about one deployment."""


class Journal:
    """Writes events. One that cannot be written is only logged: nothing depends on it. So is one
    whose reason was given for the same deployment a moment ago: what flaps fills no etcd."""

    def __init__(
        self, cluster: Cluster, instance: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster, self._instance, self._clock = cluster, instance[:128], clock
        self._told: dict[tuple[str, str], float] = {}
        """By uid and reason: when it was told; the oldest first."""

    async def tell(self, resource: Resource, news: News) -> bool:
        """One event about a deployment. True where it was written."""
        logger.info("%s: %s %s", resource.key, news.reason, news.message)
        self._forget_old()
        topic = (resource.uid, news.reason)
        if topic in self._told:
            return False
        try:
            await self._cluster.create(EVENT, self._event(resource, news))
        except ApiError as error:
            logger.warning("%s: no event: %s", resource.key, error)
            return False
        self._told[topic] = self._clock()
        return True

    def _forget_old(self) -> None:
        until = self._clock() - SAME_AGAIN_S
        while self._told and next(iter(self._told.values())) <= until:
            del self._told[next(iter(self._told))]

    def _event(self, resource: Resource, news: News) -> Manifest:
        return {
            "apiVersion": EVENT.api_version,
            "kind": EVENT.name,
            "metadata": {
                "name": f"{resource.name}.{secrets.token_hex(8)}",
                "namespace": resource.namespace,
            },
            "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
            "action": "Reconcile",
            "type": news.type,
            "reason": news.reason,
            "note": news.message.encode()[:LONGEST_NOTE].decode(errors="ignore"),
            "regarding": {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": resource.name,
                "namespace": resource.namespace,
                "uid": resource.uid,
            },
        }

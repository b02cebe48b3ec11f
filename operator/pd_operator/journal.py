"""Events: what a person sees under `kubectl describe`."""

from __future__ import annotations

import logging
import secrets
from datetime import UTC, datetime

from pd_operator import names
from pd_operator.cluster import Cluster
from pd_operator.errors import ApiError
from pd_operator.kinds import EVENT
from pd_operator.resource import Resource
from pd_operator.status import News

logger = logging.getLogger(__name__)

CONTROLLER = f"{names.GROUP}/operator"
LONGEST_NOTE = 1000
"""Bytes; the API server takes 1,024."""


class Journal:
    """Writes events. One that cannot be written is only logged: nothing depends on it."""

    def __init__(self, cluster: Cluster, instance: str) -> None:
        self._cluster, self._instance = cluster, instance[:128]

    async def tell(self, resource: Resource, news: News) -> bool:
        """One event about a deployment. True where it was written."""
        logger.info("%s: %s %s", resource.key, news.reason, news.message)
        event = {
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
        try:
            await self._cluster.create(EVENT, event)
        except ApiError as error:
            logger.warning("%s: no event: %s", resource.key, error)
            return False
        return True

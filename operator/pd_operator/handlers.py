"""kopf's part: it follows the PDDeployments and hands each change on. The only importer of kopf.

The one handler is of the kind that sees events and nothing else: no finalizer, no annotation, no
diff, no index, so that an operator that is down holds nothing back and a start is cheap. What is
done about a change is reconcile's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from pd_operator import names
from pd_operator.cluster import PAGE, SILENCE_S, WATCH_S, Cluster

TOKEN_LIFE = timedelta(minutes=10)
"""After so long kopf asks for the credentials again; a pod's token is renewed within an hour."""
Told = Callable[[str, dict[str, Any]], None]
"""Called with DELETED or anything else, and the PDDeployment."""


def settings() -> kopf.OperatorSettings:
    """Finite time-outs everywhere, nothing stored in objects, no election of kopf's own."""
    chosen = kopf.OperatorSettings()
    chosen.persistence.finalizer = f"{names.GROUP}/operator"
    chosen.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=names.GROUP)
    chosen.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=names.GROUP)
    chosen.posting.enabled = False
    chosen.peering.standalone = True
    chosen.watching.server_timeout = WATCH_S
    chosen.watching.client_timeout = WATCH_S + 30
    chosen.watching.connect_timeout = 30
    chosen.watching.inactivity_timeout = SILENCE_S
    chosen.watching.chunk_size = PAGE
    chosen.networking.error_backoffs = (1, 2, 5, 10)
    chosen.networking.enforce_retry_after = True
    chosen.queueing.worker_limit = None
    chosen.queueing.idle_timeout = 1.0
    chosen.queueing.error_delays = (1, 2, 5, 10, 30)
    chosen.execution.default_backoff = 5
    chosen.scanning.disabled = True
    chosen.process.ultimate_exiting_timeout = 60
    return chosen


def registry(cluster: Cluster, told: Told) -> kopf.OperatorRegistry:
    """The login and the one handler."""
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        access = await cluster.access()
        return kopf.ConnectionInfo(
            server=access.server,
            ca_path=access.ca_file,
            insecure=not access.verify,
            certificate_path=access.cert_file,
            private_key_path=access.key_file,
            scheme="Bearer" if access.token else None,
            token=access.token,
            expiration=datetime.now(UTC) + TOKEN_LIFE if access.token else None,
        )

    @kopf.on.event(names.GROUP, names.VERSION, names.PLURAL, registry=made)
    async def changed(event: kopf.RawEvent, **_: Any) -> None:
        told(event["type"] or "", dict(event["object"]))

    return made


async def follow(
    cluster: Cluster, namespaces: Collection[str], told: Told, stop: asyncio.Event
) -> None:
    """Hand on every change until `stop` is set. Raises what ends kopf."""
    for noisy in ("kopf", "kopf.objects", "kopf._core"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    await kopf.operator(
        registry=registry(cluster, told),
        settings=settings(),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=tuple(namespaces),
        stop_flag=stop,
    )

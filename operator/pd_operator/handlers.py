"""kopf's part: it follows the PDDeployments and hands each change on. The only importer of kopf.

The one handler is of the kind that sees events and nothing else: no finalizer, no annotation, no
diff, no index, so that an operator that is down holds nothing back and a start is cheap. What is
done about a change is reconcile's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

import kopf

from pd_operator import names
from pd_operator.cluster import PAGE, SILENCE_S, TLS_END_S, WATCH_S, Access, Cluster

logger = logging.getLogger(__name__)

TOKEN_LIFE = timedelta(minutes=10)
"""After so long kopf asks for the credentials again; a pod's token is renewed within an hour."""
AGAIN_S = 2.0
"""Until kopf begins anew after it has ended by itself."""
PATIENCE_S = 5.0
"""It has so long to end."""
Login = Callable[[], Awaitable[Access]]
Told = Callable[[str, dict[str, Any]], None]
"""Called with DELETED or anything else, and the PDDeployment."""


class NoDiffs(kopf.DiffBaseStorage):
    """There is no handler of differences: nothing is stored for them, and no body is copied."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return {}

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        pass


def settings() -> kopf.OperatorSettings:
    """Finite time-outs everywhere, nothing stored in objects, no election of kopf's own."""
    chosen = kopf.OperatorSettings()
    chosen.persistence.finalizer = f"{names.GROUP}/operator"
    chosen.persistence.diffbase_storage = NoDiffs()
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
    chosen.process.ultimate_exiting_timeout = None
    return chosen


def registry(login: Login, told: Told) -> kopf.OperatorRegistry:
    """The login and the one handler."""
    made = kopf.OperatorRegistry()

    @kopf.on.login(registry=made)
    async def connect(**_: Any) -> kopf.ConnectionInfo:
        access = await login()
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


async def follow(cluster: Cluster, namespaces: Collection[str], told: Told) -> None:
    """Hand on every change until cancelled.

    kopf has a loop of its own in a thread of its own: at its end it cancels every task of its loop.
    """
    logging.getLogger("kopf").setLevel(logging.WARNING)
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # signals are ours
    loop = asyncio.get_running_loop()
    begun: Future[Callable[[], object]] = Future()

    async def login() -> Access:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(cluster.access(), loop))

    def hand_on(event: str, body: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(told, event, body)

    async def run() -> None:
        stop, own = asyncio.Event(), asyncio.get_running_loop()
        begun.set_result(lambda: own.call_soon_threadsafe(stop.set))
        await _keep_running(registry(login, hand_on), namespaces, stop)

    thread = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(run())))
    try:
        await asyncio.shield(thread)
    finally:
        stop_it = await asyncio.wrap_future(begun)
        if not thread.done():
            stop_it()
        await thread


async def _keep_running(
    made: kopf.OperatorRegistry, namespaces: Collection[str], stop: asyncio.Event
) -> None:
    """kopf ends by itself at what it does not expect, such as an answer that breaks off while it
    looks for resources; then it begins anew."""
    while not stop.is_set():
        roots = await kopf.spawn_tasks(
            registry=made,
            settings=settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=tuple(namespaces),
            stop_flag=stop,
        )
        done, _ = await asyncio.wait(roots, return_when=asyncio.FIRST_COMPLETED)
        await _end(roots)
        for error in filter(None, (task.exception() for task in done)):
            logger.error("kopf has ended and begins anew: %r", error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AGAIN_S):
                await stop.wait()
    await asyncio.sleep(TLS_END_S)


async def _end(roots: Collection[asyncio.Task[Any]]) -> None:
    """First the root tasks, which end the others, then whatever hangs."""
    for tasks in (set(roots), asyncio.all_tasks() - {asyncio.current_task()}):
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=PATIENCE_S)

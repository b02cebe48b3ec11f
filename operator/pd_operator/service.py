"""The operator's process: puts the parts together and runs them until SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
import time

from pd_operator.cluster import Cluster
from pd_operator.errors import ApiError, OperatorError
from pd_operator.handlers import follow
from pd_operator.health import Health, serve
from pd_operator.journal import Journal
from pd_operator.kinds import ALWAYS, OPTIONAL, PDDEPLOYMENT, POD
from pd_operator.lease import Election
from pd_operator.options import RunOptions
from pd_operator.permissions import check, needs
from pd_operator.plan import Surroundings
from pd_operator.prober import Prober
from pd_operator.reconcile import Reconciler, Tools
from pd_operator.reflector import Reflector, Scope
from pd_operator.resync import Resync
from pd_operator.store import Store
from pd_operator.telemetry import Telemetry
from pd_operator.workqueue import WorkQueue

logger = logging.getLogger(__name__)

CRD_TRIES = 60
CRD_PAUSE_S = 1.0


def run(options: RunOptions) -> int:
    """Serve until SIGTERM or SIGINT; the exit status. Raises OperatorError."""
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    return asyncio.run(_run(options))


async def _run(options: RunOptions) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    cluster = await Cluster.connect()
    try:
        await Service(options, cluster).run(stop)
    finally:
        await cluster.close()
    return 0


class Service:
    """All parts of one operator."""

    def __init__(self, options: RunOptions, cluster: Cluster) -> None:
        self.options, self.cluster = options, cluster
        self.store, self.telemetry = Store(), Telemetry()
        self.queue = WorkQueue(time.monotonic)
        identity = options.identity or f"{socket.gethostname()}-{secrets.token_hex(4)}"
        namespace, _, name = options.lease.partition("/")
        self.election = Election(cluster, namespace, name, identity)
        self.resync = Resync(
            cluster, self.store, self.queue.add, options.namespace, options.resync_s
        )
        self.reflectors: list[Reflector] = []
        self.port = 0
        """Of /healthz and the others, once it runs."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. Raises OperatorError where something needed is missing."""
        await self._until_served()
        optional = frozenset([kind for kind in OPTIONAL if await self.cluster.knows(kind)])
        election = self.options.lease.partition("/")[0] if self.options.leader_elect else ""
        await check(self.cluster, list(needs(self.options.namespace, optional, election)))
        self.reflectors = [
            self._reflector(Scope(kind=kind, namespace=namespace))
            for kind in (*ALWAYS, *sorted(optional), POD)
            for namespace in self.options.namespace or ("",)
        ]
        self._publish()
        health = Health(self.reflectors, self._stuck_s, lambda: self.resync.problem)
        runner, self.port = await serve(health, self.telemetry, self.options.port)
        try:
            await self._together(stop, frozenset(kind.name for kind in optional))
        finally:
            await runner.cleanup()

    async def _until_served(self) -> None:
        """The CRD may be applied together with the operator."""
        for _ in range(CRD_TRIES):
            if await self.cluster.knows(PDDEPLOYMENT):
                return
            await asyncio.sleep(CRD_PAUSE_S)
        raise OperatorError(f"the API server knows no {PDDEPLOYMENT.plural}: apply crds/ first")

    async def _until_more_kinds(self, optional: frozenset[str]) -> None:
        """Returns when KEDA or Prometheus' operator has been installed: then a new start is due,
        which asks for the permissions and follows the new kind."""
        while True:
            await asyncio.sleep(self.options.resync_s)
            with contextlib.suppress(ApiError):
                for kind in OPTIONAL:
                    if kind.name not in optional and await self.cluster.knows(kind):
                        logger.warning("there are %s now: a new start is due", kind.plural)
                        return

    def _reflector(self, scope: Scope) -> Reflector:
        return Reflector(self.cluster, self.store, scope, self.queue.add)

    def _publish(self) -> None:
        tell = self.telemetry.gauge
        tell("leading", "1 while this replica acts", lambda: float(self.election.leading))
        tell("queue_length", "Deployments that wait to be looked at", lambda: len(self.queue))
        tell("queue_lag_seconds", "Wait of the most overdue one", self._lag_s)

    def _lag_s(self) -> float:
        """A replica that does not lead lets its queue wait."""
        return self.queue.lag_s if self.election.leading else 0.0

    def _stuck_s(self) -> float:
        return self.queue.stuck_s if self.election.leading else 0.0

    async def _together(self, stop: asyncio.Event, optional: frozenset[str]) -> None:
        """Follow the cluster, and act while leading, until `stop` or until a part ends: by an
        error, or since a new start is due."""
        prober = Prober(self.queue.add) if self.options.probe_workers else None
        reconciler = self._reconciler(optional, prober)
        ended = asyncio.create_task(stop.wait())
        parts = [asyncio.create_task(reflector.run()) for reflector in self.reflectors]
        parts += [
            asyncio.create_task(follow(self.cluster, self.options.namespace, self.resync.told)),
            asyncio.create_task(self.resync.run()),
            asyncio.create_task(self._until_more_kinds(optional)),
            asyncio.create_task(self._lead(reconciler)),
        ]
        try:
            done, _ = await asyncio.wait({ended, *parts}, return_when=asyncio.FIRST_COMPLETED)
            for task in done - {ended}:
                task.result()
        finally:
            for task in (ended, *parts):
                task.cancel()
            await asyncio.gather(ended, *parts, return_exceptions=True)
            if prober:
                await prober.close()

    def _reconciler(self, optional: frozenset[str], prober: Prober | None) -> Reconciler:
        tools = Tools(
            cluster=self.cluster,
            store=self.store,
            queue=self.queue,
            journal=Journal(self.cluster, self.election.identity),
            telemetry=self.telemetry,
            prober=prober,
        )
        around = Surroundings(
            optional_kinds=optional, operator_namespace=self.options.lease.partition("/")[0]
        )
        return Reconciler(tools, around, self.options.resync_s)

    async def _lead(self, reconciler: Reconciler) -> None:
        """Act on complete knowledge only: what is not listed yet would look as if it were gone."""

        async def act() -> None:
            self.queue.begin()
            await asyncio.gather(*(reflector.listed.wait() for reflector in self.reflectors))
            await self.resync.refresh()
            try:
                await asyncio.gather(*(reconciler.work() for _ in range(self.options.workers)))
            finally:
                reconciler.rest()

        if self.options.leader_elect:
            await self.election.run(act)
        self.election.leading = True
        await act()

"""Makes one deployment after the other what its spec says: observe, plan (pure), act.

Level-triggered: nothing depends on which event led here, or on what an earlier run left half done.
Several deployments are worked on at a time, each by one task. Runs in the operator's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from pd_operator import names
from pd_operator.archive import Archive
from pd_operator.cluster import Cluster
from pd_operator.conditions import (
    Judgement,
    Verdict,
    monitoring_active,
    overdue_in_s,
    scaling_active,
    yes,
)
from pd_operator.decisions import Decisions, Thread, decide
from pd_operator.errors import (
    ApiError,
    Conflict,
    Forbidden,
    ForeignObject,
    InvalidSpec,
    NotFound,
    OperatorError,
    Refused,
)
from pd_operator.groups import Restarts, regroup
from pd_operator.journal import Journal
from pd_operator.kinds import PDDEPLOYMENT, POD, SECRET, STATEFUL_SET, Kind, kind_of
from pd_operator.objects.access import secret
from pd_operator.observed import Observed, Pod, is_leftover, is_own, observe
from pd_operator.plan import Plan, Scale, Surroundings, make_plan, replicas_manifest
from pd_operator.prober import Prober, Sight, targets
from pd_operator.resource import Key, Manifest, Resource
from pd_operator.routing import Relabel, relabels
from pd_operator.status import News, broken_status, make_status, news, status_manifest
from pd_operator.store import Store
from pd_operator.telemetry import Telemetry
from pd_operator.workqueue import WorkQueue

logger = logging.getLogger(__name__)

LEFTOVER_S = 2.0
"""Pause before the garbage collector's work is looked at again."""


@dataclass(slots=True)
class Memory:
    """What is known of one deployment from earlier runs; can be lost at any time."""

    uid: str
    has_secret: bool = False
    settled: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """By kind and name: hash and version of what was applied."""
    thread: Thread = field(default_factory=Thread)
    restarts: Restarts = field(default_factory=dict)
    archived: str = ""
    """The revision that was written down last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What a reconciler works with."""

    cluster: Cluster
    store: Store
    queue: WorkQueue
    journal: Journal
    telemetry: Telemetry
    prober: Prober | None
    """None where the workers cannot be reached."""


class Reconciler:
    """Works the queue off."""

    def __init__(self, tools: Tools, around: Surroundings, resync_s: float) -> None:
        self._cluster, self._store, self._queue = tools.cluster, tools.store, tools.queue
        self._journal, self._telemetry = tools.journal, tools.telemetry
        self._prober = tools.prober
        self._archive = Archive(tools.cluster, tools.telemetry)
        self._around, self._resync_s = around, resync_s
        self._memories: dict[Key, Memory] = {}

    async def work(self) -> None:
        """One of several workers; never ends."""
        while True:
            key = await self._queue.get()
            with self._telemetry.timed():
                await self._work_on(key)
            await asyncio.sleep(0)  # a look that writes nothing waits for nothing; others may act

    def rest(self) -> None:
        """Called when the workers have ended, for as long as another replica acts."""
        if self._prober:
            self._prober.rest()

    async def _work_on(self, key: Key) -> None:
        try:
            again_s = await self._reconcile(key)
        except asyncio.CancelledError:
            self._queue.done(key, 0.0)  # whoever leads next begins with it
            raise
        except OperatorError as error:
            pause_s = self._queue.failed(key)
            self._telemetry.failed(type(error).__name__)
            logger.warning("%s: %s; again in %.1f s", key, error, pause_s)
        except Exception:
            self._queue.failed(key)
            self._telemetry.failed("bug")
            logger.exception("%s: a bug of the operator", key)
        else:
            self._queue.done(key, again_s)

    async def _reconcile(self, key: Key) -> float | None:
        """Seconds until the next look; None when the deployment is gone. Raises OperatorError."""
        body = self._store.deployment(key)
        if body is None or "deletionTimestamp" in body["metadata"]:
            self._forget(key)
            return None
        try:
            resource = Resource.parse(body)
        except InvalidSpec as error:
            await self._write_status(body, broken_status(body, str(error), time.time()))
            raise
        return await self._pursue(resource, body)

    def _forget(self, key: Key) -> None:
        """It is gone, or about to be: ownerReferences remove the children."""
        self._memories.pop(key, None)
        if self._prober:
            self._prober.forget(key)

    def _memory(self, resource: Resource) -> Memory:
        memory = self._memories.get(resource.key)
        if memory is None or memory.uid != resource.uid:
            memory = self._memories[resource.key] = Memory(resource.uid)
        return memory

    async def _pursue(self, resource: Resource, body: Manifest) -> float:
        memory, now = self._memory(resource), time.time()
        observed = observe(resource, self._store)
        sight = self._look(resource, observed)
        loads = sight.loads if self._prober else None
        decisions = decide(resource, observed, loads, memory.thread, now)
        regrouping = regroup(resource, observed, memory.restarts, now)
        memory.thread, memory.restarts = decisions.thread, regrouping.restarts
        problem: OperatorError | None = None
        waits = [self._resync_s, decisions.again_after_s, regrouping.again_after_s]
        if (overdue_s := overdue_in_s(resource, now)) > 0:
            waits.append(overdue_s)
        try:
            if await self._ensure_secret(resource, body, observed, memory):
                return 0.0
            plan = make_plan(
                resource, decisions, observed, self._store, self._around, memory.settled
            )
            memory.settled.update(plan.settled)
            if plan.leftovers:
                waits.append(LEFTOVER_S)
            await self._act(resource, plan, memory)
            await self._keep(resource, body, decisions.revision, memory)
            await self._tend(resource, relabels(resource, observed, decisions.drains, now))
            await self._delete(resource, (*decisions.replaced, *regrouping.deletes))
        except (ForeignObject, Refused, Forbidden) as error:
            problem = error
        await self._report(resource, body, decisions, sight, problem)
        if problem:
            raise problem
        return min(waits)

    def _look(self, resource: Resource, observed: Observed) -> Sight:
        if self._prober is None:
            return Sight()
        self._prober.follow(resource.key, targets(resource, observed))
        return self._prober.sight(resource.key)

    async def _keep(
        self, resource: Resource, body: Manifest, revision: str, memory: Memory
    ) -> None:
        """The status is written later, so that a revision that it names has been kept."""
        if revision in (memory.archived, resource.status.get("updateRevision")):
            return
        await self._archive.keep(resource, body, revision)
        memory.archived = revision

    async def _tend(self, resource: Resource, relabels: Iterable[Relabel]) -> None:
        for each in relabels:
            with contextlib.suppress(NotFound):
                name = each.pod.name
                live = await self._cluster.patch(POD, resource.namespace, name, each.patch)
                self._store.put(POD, live)
                self._telemetry.wrote("label")

    async def _delete(self, resource: Resource, pods: Iterable[Pod]) -> None:
        for uid, pod in {pod.uid: pod for pod in pods}.items():
            await self._cluster.delete(POD, resource.namespace, pod.name, uid)
            self._telemetry.wrote("delete")

    async def _act(self, resource: Resource, plan: Plan, memory: Memory) -> None:
        for claim in plan.claims:
            await self._scale(resource, claim)
        for manifest in plan.applies:
            await self._apply(resource, manifest, memory)
        for scale in plan.scales:
            await self._scale(resource, scale)
        for kind, manifest in plan.deletes:
            meta = manifest["metadata"]
            await self._cluster.delete(kind, meta["namespace"], meta["name"], meta["uid"])
            self._telemetry.wrote("delete")

    async def _ensure_secret(
        self, resource: Resource, body: Manifest, observed: Observed, memory: Memory
    ) -> bool:
        """Make the shared secret once. It comes before the first StatefulSet, so where one exists
        nobody need look: pods that miss it say so. True where another one had to take its place:
        then the templates are other ones from now on."""
        pods = [pod for each in observed.pods.values() for pod in each]
        if any(pod.reason == "ContainerConfigError" for pod in pods):
            memory.has_secret = False
        elif any(observed.workloads.get(role) for role in names.ROLES):
            memory.has_secret = True
        if memory.has_secret:
            return False
        if not any(observed.workloads.values()):
            with contextlib.suppress(Conflict):
                await self._create_secret(resource, resource.secret)
                memory.has_secret = True
                return False
        if await self._found_secret(resource):
            memory.has_secret = True
            return False
        await self._renew_secret(resource, body)
        return True

    async def _create_secret(self, resource: Resource, name: str) -> None:
        await self._cluster.create(SECRET, secret(resource, name, secrets.token_hex(32)))
        self._telemetry.wrote("create")

    async def _found_secret(self, resource: Resource) -> bool:
        """Raises ForeignObject, Conflict."""
        try:
            found = await self._cluster.get(SECRET, resource.namespace, resource.secret)
        except NotFound:
            return False
        _refuse(resource, SECRET, found)
        return True

    async def _renew_secret(self, resource: Resource, body: Manifest) -> None:
        """The old value lives on in running parts, which would refuse those with a new one. A new
        name is a new pairing key, so that a rollout replaces them all. The Secret comes first: a
        status never names one that there is not."""
        name = names.secret(resource.name, secrets.token_hex(4))
        await self._create_secret(resource, name)
        wanted = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": resource.name, "namespace": resource.namespace},
            "status": {**body.get("status", {}), "secret": name},
        }
        if await self._write_status(body, wanted):
            message = (
                f"Secret {resource.secret} is gone: all parts are replaced by ones with {name}"
            )
            await self._tell(resource, News(type="Warning", reason="SecretLost", message=message))

    async def _apply(self, resource: Resource, manifest: Manifest, memory: Memory) -> None:
        kind, meta = kind_of(manifest), manifest["metadata"]
        known = self._store.of(resource.key, kind).get(meta["name"])
        if known is None:
            await self._refuse_foreign(resource, manifest)
        live = await self._cluster.apply(manifest, names.FIELD_MANAGER)
        self._telemetry.wrote("apply")
        self._store.put(kind, live)
        mark = meta["annotations"][names.APPLIED_HASH]
        memory.settled[kind.name, meta["name"]] = (mark, live["metadata"]["resourceVersion"])

    async def _refuse_foreign(self, resource: Resource, manifest: Manifest) -> None:
        """Objects without our labels are not in the store: look before the first apply."""
        kind, meta = kind_of(manifest), manifest["metadata"]
        try:
            found = await self._cluster.get(kind, meta["namespace"], meta["name"])
        except NotFound:
            return
        _refuse(resource, kind, found)
        self._store.put(kind, found)

    async def _scale(self, resource: Resource, scale: Scale) -> None:
        manifest = replicas_manifest(resource, scale)
        live = await self._cluster.apply(manifest, names.REPLICAS_MANAGER)
        self._telemetry.wrote("scale")
        self._store.put(STATEFUL_SET, live)

    async def _report(
        self,
        resource: Resource,
        body: Manifest,
        decisions: Decisions,
        sight: Sight,
        problem: OperatorError | None,
    ) -> None:
        verdict = Verdict(
            wanted=decisions.wanted,
            templates=decisions.templates,
            revision=decisions.revision,
            rollout=decisions.rollout,
            stalled=_stalled(problem) if problem else decisions.stalled,
            scaling=scaling_active(resource, decisions.scaling, self._around.optional_kinds),
            monitoring=monitoring_active(resource, self._around.optional_kinds),
            bootstrap=sight.bootstrap,
            transfers=sight.transfers,
        )
        status = make_status(resource, observe(resource, self._store), verdict, time.time())
        if await self._write_status(body, status_manifest(resource, status)):
            for each in news(resource, status):
                await self._tell(resource, each)

    async def _tell(self, resource: Resource, news: News) -> None:
        if await self._journal.tell(resource, news):
            self._telemetry.wrote("event")

    async def _write_status(self, body: Manifest, wanted: Manifest) -> bool:
        """True where it was written: it differs from what is stored."""
        if body.get("status") == wanted["status"]:
            return False
        try:
            live = await self._cluster.apply(wanted, names.STATUS_MANAGER, subresource="status")
        except (NotFound, Conflict):
            return False  # deleted meanwhile
        self._telemetry.wrote("status")
        self._store.put(PDDEPLOYMENT, live)
        return True


def _refuse(resource: Resource, kind: Kind, found: Manifest) -> None:
    """Raises ForeignObject for what is someone else's, and Conflict, which is tried again soon, for
    what the garbage collector is about to remove."""
    name = found["metadata"]["name"]
    if is_leftover(resource, found):
        raise Conflict(f"{kind.name} {name} of an earlier deployment of this name has to go first")
    if not is_own(resource, found):
        raise ForeignObject(kind.name, name)


def _stalled(problem: OperatorError) -> Judgement:
    if isinstance(problem, ForeignObject):
        return yes("NameConflict", str(problem))
    if isinstance(problem, Forbidden):
        return yes("Forbidden", f"the operator may not do what is needed: {problem}")
    assert isinstance(problem, ApiError)
    return yes("InvalidSpec", f"the API server refuses a child: {problem}")

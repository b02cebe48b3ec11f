"""Keeps the store equal to the cluster for one kind: a list, then a watch, again and again."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pd_operator import names
from pd_operator.cluster import Cluster
from pd_operator.errors import ApiError, Forbidden, Gone, Unreachable
from pd_operator.kinds import Kind
from pd_operator.resource import Key, Manifest
from pd_operator.store import Store, packed

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 15.0
AT_ONCE_S = 1.0
"""No API server ends a watch so soon; what does is asked ever more slowly."""
Changed = Callable[[Key], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a reflector follows."""

    kind: Kind
    namespace: str = ""
    selector: str = names.MANAGED_SELECTOR

    def __str__(self) -> str:
        return f"{self.kind.plural}{f' in {self.namespace}' if self.namespace else ''}"


class Reflector:
    """Follows one kind. `seen_at` is when the API server last answered us about it."""

    def __init__(self, cluster: Cluster, store: Store, scope: Scope, changed: Changed) -> None:
        self._cluster, self._store, self._changed = cluster, store, changed
        self.scope = scope
        self.seen_at = time.monotonic()
        self.listed = asyncio.Event()
        """Set after the first list."""
        self._version = ""
        self._pause_s = FIRST_PAUSE_S

    async def run(self) -> None:
        """Never ends; what fails is tried again, ever more slowly."""
        while True:
            try:
                await self._follow()
            except Gone:
                self._version = ""
                logger.debug("%s: starts anew", self.scope)
                await self._pause()
            except ApiError as error:
                level = logging.ERROR if isinstance(error, Forbidden) else logging.WARNING
                logger.log(level, "%s: %s", self.scope, error)
                await self._pause()

    async def _pause(self) -> None:
        await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.5))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    async def _follow(self) -> None:
        """One list where none is valid, then one watch to its end."""
        scope = self.scope
        if not self._version:
            entries, self._version = await self._cluster.collect(
                scope.kind, partial(packed, scope.kind), scope.namespace, scope.selector
            )
            self._heard()
            for key in self._store.replace(scope.kind, entries, scope.namespace, self._version):
                self._changed(key)
            self.listed.set()
        began = time.monotonic()
        watch = self._cluster.watch(
            scope.kind, self._version, scope.namespace, scope.selector, self._heard
        )
        async for event, value in watch:
            self._heard()
            self._pause_s = FIRST_PAUSE_S
            self._take(event, value)
        if time.monotonic() - began < AT_ONCE_S:
            raise Unreachable("the watch ended at once")
        self._pause_s = FIRST_PAUSE_S

    def _heard(self) -> None:
        self.seen_at = time.monotonic()

    def _take(self, event: str, value: Manifest) -> None:
        self._version = value["metadata"]["resourceVersion"]
        if event == "BOOKMARK":
            return
        store = self._store.drop if event == "DELETED" else self._store.put
        key = store(self.scope.kind, value)
        if key:
            self._changed(key)

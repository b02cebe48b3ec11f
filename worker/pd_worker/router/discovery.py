"""Who should be in the fleet. The registry follows one Discovery.

StaticDiscovery serves the command line and /workers; kubernetes.py follows a cluster's own lists.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable

from pd_worker.router.worker import WorkerSpec


class Discovery(ABC):
    """A source of the wanted workers."""

    @abstractmethod
    def watch(self) -> AsyncIterator[frozenset[WorkerSpec]]:
        """The whole wanted set, at once and after each change; never ends by itself."""


class StaticDiscovery(Discovery):
    """A list that is changed by hand. URLs are unique in it."""

    def __init__(self, specs: Iterable[WorkerSpec] = ()) -> None:
        self._specs = {spec.url: spec for spec in specs}
        self._changed = asyncio.Condition()

    async def add(self, spec: WorkerSpec) -> None:
        """List a worker; one with an equal URL is replaced."""
        self._specs[spec.url] = spec
        await self._notify()

    async def remove(self, url: str) -> bool:
        """Take a worker off the list; False where it was not on it."""
        found = self._specs.pop(url, None) is not None
        await self._notify()
        return found

    async def watch(self) -> AsyncIterator[frozenset[WorkerSpec]]:
        wanted: frozenset[WorkerSpec] | None = None
        while True:
            async with self._changed:
                while wanted == self._wanted():
                    await self._changed.wait()
                wanted = self._wanted()
            yield wanted

    def _wanted(self) -> frozenset[WorkerSpec]:
        return frozenset(self._specs.values())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

"""Workers as a Kubernetes cluster lists them: the EndpointSlices behind each role's Service.

In a pod, as its service account, with nothing but HTTP. While the API server cannot be reached the
last list stays in force: workers do not vanish because their registry does. An endpoint that is
terminating is left out, so that a worker gets no new requests from the moment it is to go; whether
one is ready is found out by looking at it, like everywhere.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from pd_worker.config import Role
from pd_worker.errors import ConfigError
from pd_worker.router.discovery import Discovery
from pd_worker.router.options import KubernetesOptions
from pd_worker.router.worker import WorkerSpec

log = logging.getLogger(__name__)

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SERVICE = "kubernetes.io/service-name"
WATCH_S = 300
"""The API server ends a watch after so long."""
SILENCE_S = 75.0
"""It sends a bookmark a minute; without one for so long the connection is dead."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 15.0
AT_ONCE_S = 1.0
"""No API server ends a watch so soon; what does is asked ever more slowly."""
LINE_BYTES = 4 << 20

Slice = dict[str, Any]
Specs = frozenset[WorkerSpec]


class Expired(Exception):
    """The version to watch from is too old: a new list is needed."""


class KubernetesDiscovery(Discovery):
    """Follows the EndpointSlices of the Services that `options` names."""

    def __init__(self, options: KubernetesOptions, account: Path = ACCOUNT) -> None:
        """Raises ConfigError where the pod has no service account."""
        if not (account / "token").is_file():
            problem = f"there is no service account token in {account}"
            raise ConfigError("--kubernetes-namespace", problem, "run the router in a pod")
        self._account = account
        self._roles: dict[str, Role] = {
            options.kubernetes_prefill: "prefill",
            options.kubernetes_decode: "decode",
        }
        names = ",".join(name for name in self._roles if name)
        path = f"/apis/discovery.k8s.io/v1/namespaces/{options.kubernetes_namespace}/endpointslices"
        self._url = options.kubernetes_api.rstrip("/") + path
        self._query = {"labelSelector": f"{SERVICE} in ({names})"}
        self._slices: dict[str, Slice] = {}
        self._version = ""

    async def watch(self) -> AsyncIterator[Specs]:
        pause_s = FIRST_PAUSE_S
        async with self._session() as session:
            while True:
                began = time.monotonic()
                try:
                    async for _ in self._changes(session):
                        yield self._specs()
                except Expired:
                    self._version = ""
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                    log.warning("endpoints: %s", error or type(error).__name__)
                if time.monotonic() - began >= AT_ONCE_S:
                    pause_s = FIRST_PAUSE_S
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.5))
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    @asynccontextmanager
    async def _session(self) -> AsyncIterator[aiohttp.ClientSession]:
        authority = self._account / "ca.crt"
        trust = ssl.create_default_context(cafile=authority) if authority.is_file() else True
        timeout = aiohttp.ClientTimeout(
            total=WATCH_S + SILENCE_S, sock_connect=10, sock_read=SILENCE_S
        )
        connector = aiohttp.TCPConnector(ssl=trust)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, read_bufsize=LINE_BYTES
        ) as session:
            yield session

    async def _changes(self, session: aiohttp.ClientSession) -> AsyncIterator[None]:
        """A turn after the list, where one is needed, and after each change of one watch.

        Raises Expired, and what aiohttp raises; ends when the server ends the watch.
        """
        if not self._version:
            async with self._get(session, {}) as response:
                page = await response.json()
            self._slices = {each["metadata"]["name"]: each for each in page["items"]}
            self._version = page["metadata"]["resourceVersion"]
            yield
        watch = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_S),
        }
        async with self._get(session, watch) as response:
            async for line in response.content:
                if self._take(json.loads(line)):
                    yield

    @asynccontextmanager
    async def _get(
        self, session: aiohttp.ClientSession, query: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        token = await asyncio.to_thread((self._account / "token").read_text)  # it is renewed
        headers = {"Authorization": f"Bearer {token.strip()}"}
        async with session.get(
            self._url, params={**self._query, **query}, headers=headers
        ) as response:
            if response.status == 410:
                raise Expired
            response.raise_for_status()
            yield response

    def _take(self, event: dict[str, Any]) -> bool:
        """Remember one event; True where it may have changed the list."""
        kind, value = event["type"], event["object"]
        if kind == "ERROR":
            if value.get("code") == 410:
                raise Expired
            raise ValueError(value.get("message", "error in a watch"))
        self._version = value["metadata"]["resourceVersion"]
        if kind == "BOOKMARK":
            return False
        name = value["metadata"]["name"]
        if kind == "DELETED":
            self._slices.pop(name, None)
        else:
            self._slices[name] = value
        return True

    def _specs(self) -> Specs:
        return frozenset(
            spec
            for each in self._slices.values()
            if (role := self._roles.get(each["metadata"]["labels"].get(SERVICE, "")))
            for spec in specs_of(each, role)
        )


def specs_of(endpoints: Slice, role: Role) -> Iterator[WorkerSpec]:
    """The workers of one EndpointSlice that are not about to end."""
    ports = {port.get("name"): port["port"] for port in endpoints.get("ports") or []}
    if "http" not in ports:
        return
    for endpoint in endpoints.get("endpoints") or []:
        if (endpoint.get("conditions") or {}).get("terminating"):
            continue
        host = endpoint["addresses"][0]
        host = f"[{host}]" if ":" in host else host
        bootstrap = ports.get("bootstrap") if role == "prefill" else None
        yield WorkerSpec(url=f"http://{host}:{ports['http']}", role=role, bootstrap_port=bootstrap)


class Joined(Discovery):
    """What several sources want, together; told once each of them has said something."""

    def __init__(self, sources: Iterable[Discovery]) -> None:
        self._sources = tuple(sources)

    async def watch(self) -> AsyncIterator[Specs]:
        told: dict[int, Specs] = {}
        news: asyncio.Queue[tuple[int, Specs]] = asyncio.Queue()

        async def follow(index: int, source: Discovery) -> None:
            async for wanted in source.watch():
                news.put_nowait((index, wanted))

        tasks = {asyncio.create_task(follow(*each)) for each in enumerate(self._sources)}
        try:
            while True:
                told |= [await _next(news, tasks)]
                if len(told) == len(self._sources):
                    yield frozenset().union(*told.values())
        finally:
            for task in tasks:
                task.cancel()


async def _next(
    news: asyncio.Queue[tuple[int, Specs]], tasks: set[asyncio.Task[None]]
) -> tuple[int, Specs]:
    """The next item; raises what ended one of the tasks that provide them."""
    item = asyncio.create_task(news.get())
    try:
        await asyncio.wait([item, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        return await item
    finally:
        item.cancel()

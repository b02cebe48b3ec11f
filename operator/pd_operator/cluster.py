"""The API server, as few plain calls; the only importer of `kubernetes`.

Every call has a finite timeout and raises errors.ApiError's kinds. What cannot do harm when it is
done twice is tried again for a while where no answer came. Runs in one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from kubernetes.aio import client, config
from kubernetes.aio.config import ConfigException

from pd_operator.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    NotFound,
    OperatorError,
    Refused,
    Unreachable,
)
from pd_operator.kinds import ACCESS_REVIEW, Kind, kind_of
from pd_operator.resource import Manifest

T = TypeVar("T")
REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 10.0
ATTEMPTS = 4
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
PAGE = 500
WATCH_S = 300
"""The API server ends a watch after so long."""
SILENCE_S = 75.0
"""It sends a bookmark about every minute; without one for so long the connection may be dead."""
CONNECTIONS = 64
TLS_END_S = 0.25
"""aiohttp ends TLS connections in the background; a loop must not end before."""

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_ERRORS: Mapping[int, type[ApiError]] = {
    400: Refused,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Refused,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Where the API server is and how one is let in, for other clients."""

    server: str
    ca_file: str | None
    verify: bool
    cert_file: str | None
    key_file: str | None
    token: str | None


class _Page(msgspec.Struct):
    """A part of a list, its objects not decoded yet."""

    metadata: Manifest
    items: list[msgspec.Raw]


_PAGE = msgspec.json.Decoder(_Page)


class Cluster:
    """A connection to the API server."""

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None) -> Cluster:
        """By that file, else by the pod's service account, else by the user's kubeconfig. Raises
        OperatorError."""
        configuration = client.Configuration()
        configuration.connection_pool_maxsize = CONNECTIONS
        await _load(configuration, kubeconfig)
        configuration.proxy = configuration.proxy or _proxy(configuration.host)
        configuration.client_session_kwargs = {"trust_env": False}  # for each request, by threads
        return cls(client.ApiClient(configuration))

    async def close(self) -> None:
        """End all connections."""
        await self._api.close()  # type: ignore[no-untyped-call]
        await asyncio.sleep(TLS_END_S)

    async def access(self) -> Access:
        """What another client needs; a token in it is valid for minutes only."""
        own = self._api.configuration
        token = (await self._headers()).get("authorization", "").split(" ", 1)[-1] or None
        return Access(
            server=own.host,
            ca_file=own.ssl_ca_cert,
            verify=own.verify_ssl,
            cert_file=own.cert_file,
            key_file=own.key_file,
            token=token,
        )

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        """One object. Raises NotFound."""
        found: Manifest = await self._retried("GET", kind.path(namespace, name))
        return found

    async def collect(
        self, kind: Kind, kept: Callable[[Manifest], T], namespace: str = "", selector: str = ""
    ) -> tuple[list[T], str]:
        """What `kept` makes of every object, one after the other, so that never many of them are
        in memory as a whole; and the version from which to watch. Raises Gone where the pages of
        one list no longer fit together."""
        items: list[T] = []
        query: dict[str, Any] = {"limit": PAGE} | ({"labelSelector": selector} if selector else {})
        common = {"apiVersion": kind.api_version, "kind": kind.name}
        while True:
            page = await self._retried("GET", kind.path(namespace), query, decode=_PAGE.decode)
            items += [kept(common | msgspec.json.decode(item)) for item in page.items]
            if not page.metadata.get("continue"):
                return items, page.metadata["resourceVersion"]
            query["continue"] = page.metadata["continue"]

    async def list(
        self, kind: Kind, namespace: str = "", selector: str = ""
    ) -> tuple[list[Manifest], str]:
        """All objects as they are; else as collect()."""
        return await self.collect(kind, lambda item: item, namespace, selector)

    async def watch(
        self,
        kind: Kind,
        version: str,
        namespace: str = "",
        selector: str = "",
        opened: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[tuple[str, Manifest]]:
        """Changes since `version` as (ADDED | MODIFIED | DELETED | BOOKMARK, object); ends when
        the server ends it or falls silent. `opened` is called when it has begun. Raises Gone where
        the version is too old."""
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": WATCH_S,
        } | ({"labelSelector": selector} if selector else {})
        timeout = aiohttp.ClientTimeout(
            total=WATCH_S + SILENCE_S, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_S
        )
        path = kind.path(namespace)
        async with self._response("GET", path, query, timeout=timeout) as response:
            opened()
            with _as_unreachable(path), contextlib.suppress(aiohttp.SocketTimeoutError):
                async for line in response.content:
                    yield _event(line, path)

    async def apply(
        self, manifest: Manifest, manager: str, *, force: bool = True, subresource: str = ""
    ) -> Manifest:
        """Server-side apply: `manager` owns exactly the fields of `manifest` afterwards. The object
        as it is then. Raises Conflict without `force` where someone else owns one of them."""
        meta = manifest["metadata"]
        query = {"fieldManager": manager, "force": str(force).lower()}
        path = kind_of(manifest).path(meta["namespace"], meta["name"], subresource)
        live: Manifest = await self._retried("PATCH", path, query, manifest, _APPLY)
        return live

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Raises Conflict where it exists. Not tried again: the first try may have worked."""
        path = kind.path(manifest["metadata"]["namespace"])
        live: Manifest = await self._once("POST", path, {}, manifest)
        return live

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Raises Conflict where it was changed since the version in `manifest`."""
        meta = manifest["metadata"]
        path = kind.path(meta["namespace"], meta["name"])
        live: Manifest = await self._once("PUT", path, {}, manifest)
        return live

    async def patch(
        self, kind: Kind, namespace: str, name: str, change: Manifest, *, subresource: str = ""
    ) -> Manifest:
        """JSON merge patch. Raises NotFound."""
        path = kind.path(namespace, name, subresource)
        live: Manifest = await self._retried("PATCH", path, {}, change, _MERGE)
        return live

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete exactly the object with this uid; fine where it is gone already."""
        options = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        with contextlib.suppress(NotFound, Conflict):
            await self._retried("DELETE", kind.path(namespace, name), {}, options)

    async def knows(self, kind: Kind) -> bool:
        """True where the API server serves the kind."""
        try:
            served = await self._retried("GET", f"/apis/{kind.api_version}")
        except NotFound:
            return False
        return any(each["name"] == kind.plural for each in served["resources"])

    async def may(self, verb: str, kind: Kind, namespace: str = "", subresource: str = "") -> bool:
        """True where we are allowed to."""
        wanted = {
            "verb": verb,
            "group": kind.group,
            "resource": kind.plural,
            "subresource": subresource,
            "namespace": namespace,
        }
        review = {
            "apiVersion": ACCESS_REVIEW.api_version,
            "kind": ACCESS_REVIEW.name,
            "spec": {"resourceAttributes": wanted},
        }
        answer = await self._retried("POST", ACCESS_REVIEW.path(), {}, review)
        return bool(answer["status"]["allowed"])

    async def _retried(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: Manifest | None = None,
        media: str = "application/json",
        decode: Callable[[bytes], Any] = msgspec.json.decode,
    ) -> Any:
        pause_s = FIRST_PAUSE_S
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await self._once(method, path, query or {}, body, media, decode)
            except Unreachable as error:
                if attempt == ATTEMPTS:
                    raise
                wait_s = error.retry_after_s or pause_s * random.uniform(0.5, 1.5)
            await asyncio.sleep(min(wait_s, LONGEST_PAUSE_S))
            pause_s *= 2
        raise AssertionError("unreachable")

    async def _once(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Manifest | None = None,
        media: str = "application/json",
        decode: Callable[[bytes], Any] = msgspec.json.decode,
    ) -> Any:
        async with self._response(method, path, query, body, media) as response:
            with _as_unreachable(path):
                return decode(await response.read())

    @contextlib.asynccontextmanager
    async def _response(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: Manifest | None = None,
        media: str = "application/json",
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A response of success, closed at the end."""
        timeout = timeout or aiohttp.ClientTimeout(
            total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S
        )
        url = self._api.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        headers = await self._headers() | {"Accept": "application/json", "Content-Type": media}
        with _as_unreachable(path):
            wrapped = await self._api.rest_client.request(  # type: ignore[no-untyped-call]
                method, url, headers=headers, body=body, _request_timeout=timeout
            )
            response: aiohttp.ClientResponse = wrapped.response
            try:
                if response.status >= 400:
                    raise _error(response, await response.read(), f"{method} {path}")
                yield response
            finally:
                response.close()  # back to the pool where all was read

    async def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = {"User-Agent": "pdserve-operator"}
        await self._api.update_params_for_auth(headers, [], ["BearerToken"], "", "GET", None)
        return headers


async def _load(configuration: client.Configuration, kubeconfig: Path | None) -> None:
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
    try:
        if in_pod and kubeconfig is None:
            config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
        else:
            await config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=str(kubeconfig) if kubeconfig else None,
                client_configuration=configuration,
            )
    except ConfigException as error:
        raise OperatorError(f"no way to the cluster: {error}") from error


def _proxy(server: str) -> str | None:
    """The environment's proxy to a server; None where there is none."""
    parts = urlsplit(server)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


@contextlib.contextmanager
def _as_unreachable(path: str) -> Iterator[None]:
    """Translates what the network does."""
    try:
        yield
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError) as error:
        raise Unreachable(f"{path}: {error or type(error).__name__}") from error


def _error(response: aiohttp.ClientResponse, body: bytes, what: str) -> ApiError:
    try:
        told = msgspec.json.decode(body).get("message", "")
    except (msgspec.DecodeError, AttributeError):
        told = body[:300].decode(errors="replace")
    status = response.status
    kind = _ERRORS.get(status, Unreachable if status == 429 or status >= 500 else Refused)
    after = response.headers.get("Retry-After", "")
    return kind(
        f"{what}: {told}", status=status, retry_after_s=float(after) if after.isdigit() else None
    )


class _Event(msgspec.Struct):
    """One change; decoding refuses what lacks a part."""

    type: str
    object: Manifest


def _event(line: bytes, path: str) -> tuple[str, Manifest]:
    """One line of a watch. Raises Gone, Unreachable: errors come as lines, too."""
    event = msgspec.json.decode(line, type=_Event)
    kind, value = event.type, event.object
    if kind != "ERROR":
        if "resourceVersion" not in (value.get("metadata") or {}):
            raise Unreachable(f"watch {path}: {kind} of an object without a version")
        return kind, value
    error = _ERRORS.get(value.get("code", 0), Unreachable)
    raise error(f"watch {path}: {value.get('message')}", status=value.get("code", 0))

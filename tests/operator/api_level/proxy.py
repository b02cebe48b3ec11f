"""A server between an operator and the API server, which answers badly when it is told to."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

Fault = Callable[["Proxy", web.Request], Awaitable[web.StreamResponse]]


class Proxy:
    """Forwards what `fault` does not answer itself. Plain HTTP on the near side."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session, self._server = session, server
        self.fault: Fault = Proxy.forward
        self.asked = 0
        """Requests so far."""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        return await self.fault(self, request)

    async def forward(self, request: web.Request) -> web.StreamResponse:
        """What the API server says, as it says it."""
        async with self.answer(request) as answer:
            response = await self.begin(request, answer)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response

    async def begin(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        """The head of an answer."""
        headers = {"Content-Type": answer.headers["Content-Type"]}
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        return response

    def answer(self, request: web.Request) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """The API server's, to be read."""
        kept = ("Content-Type", "Accept", "User-Agent")
        return self._session.request(
            request.method,
            self._server + request.path_qs,
            headers={name: request.headers[name] for name in kept if name in request.headers},
            data=request.content if request.can_read_body else None,
        )


def _far_side(kubeconfig: Path, folder: Path) -> tuple[str, ssl.SSLContext]:
    """Where the API server is, and how one is let in."""
    config = yaml.safe_load(kubeconfig.read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    for name, data in (("crt", user["client-certificate-data"]), ("key", user["client-key-data"])):
        (folder / name).write_bytes(base64.b64decode(data))
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
    tls = ssl.create_default_context(cadata=authority)
    tls.load_cert_chain(folder / "crt", folder / "key")
    return cluster["server"], tls


def _near_side(file: Path, port: int) -> Path:
    """A kubeconfig for it."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "proxy", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "proxy", "user": {}}],
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "proxy"}}],
        "current-context": "proxy",
    }
    file.write_text(json.dumps(config))
    return file


@asynccontextmanager
async def proxied(kubeconfig: Path, folder: Path) -> AsyncIterator[tuple[Proxy, Path]]:
    """A proxy that runs, and the kubeconfig by which it is used."""
    server, tls = _far_side(kubeconfig, folder)
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        proxy = Proxy(session, server)
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{rest:.*}", proxy.handle)
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield proxy, _near_side(folder / "proxied", int(runner.addresses[0][1]))
        await runner.cleanup()

"""The endpoints about the fleet: its list, its models, and what goes to any or to all workers."""

from __future__ import annotations

import asyncio
import hmac
import io
import time
from typing import Any, get_args

import aiohttp
import msgspec
from aiohttp import web

from pd_worker.config import Role
from pd_worker.errors import ConfigError, InvalidRequest, Unavailable
from pd_worker.router.discovery import StaticDiscovery
from pd_worker.router.failure import Forbidden
from pd_worker.router.inference import read_body
from pd_worker.router.pairing import heads, of_role, why_none
from pd_worker.router.registry import Registry
from pd_worker.router.worker import Worker, WorkerSpec

ANY_TIMEOUT = aiohttp.ClientTimeout(total=30)
TO_ANY = ("/tokenize", "/detokenize")
MODEL_INFO = ("/model_info", "/get_model_info")
TO_ALL = ("/flush_cache", "/abort_request")


class WorkerForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of POST /workers."""

    url: str
    role: Role
    bootstrap_port: int | None = None


class Fleet:
    """Handlers; they use only workers that are healthy, so that a dead one breaks no answer."""

    def __init__(
        self,
        registry: Registry,
        discovery: StaticDiscovery,
        session: aiohttp.ClientSession,
        secret: str,
    ) -> None:
        self._registry, self._discovery = registry, discovery
        self._session, self._secret = session, secret
        self._started_at = int(time.time())

    def _healthy(self) -> list[Worker]:
        return [worker for worker in self._registry if worker.state == "healthy"]

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models: each model that can be served now, once; its length is the shortest."""
        longest: dict[str, int] = {}
        for worker in self._healthy():
            assert worker.facts is not None
            limit = worker.facts.max_request_tokens
            longest[worker.model] = min(longest.get(worker.model, limit), limit)
        return _json({"object": "list", "data": [self._model(*item) for item in longest.items()]})

    def _model(self, name: str, longest: int) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._started_at,
            "owned_by": "pdserve",
            "root": name,
            "max_model_len": longest,
        }

    async def server_info(self, request: web.Request) -> web.Response:
        """GET /server_info: what the workers say of themselves, by role."""
        info: dict[str, Any] = {"role": "router", "internal_states": [{}]}
        for worker in self._healthy():
            assert worker.facts is not None
            info.setdefault(worker.spec.role, []).append(worker.facts.raw)
        return _json(info)

    async def list_workers(self, request: web.Request) -> web.Response:
        """GET /workers: everything about each of them."""
        return _json({"workers": [_describe(worker) for worker in self._registry]})

    async def add_worker(self, request: web.Request) -> web.Response:
        """POST /workers: 202, it is used once it was found ready and fitting."""
        self._authorize(request)
        try:
            form = msgspec.json.decode(await read_body(request), type=WorkerForm)
            port = "" if form.bootstrap_port is None else f",{form.bootstrap_port}"
            spec = WorkerSpec.parse(form.role, form.url + port)
        except (msgspec.MsgspecError, ConfigError) as error:
            raise InvalidRequest(str(error)) from None
        await self._discovery.add(spec)
        return _json({"url": spec.url, "role": spec.role}, status=202)

    async def remove_worker(self, request: web.Request) -> web.Response:
        """DELETE /workers?url=: no new requests; running ones go on."""
        self._authorize(request)
        url = request.query.get("url", "").rstrip("/")
        if not await self._discovery.remove(url):
            return _json({"error": {"message": f"no worker {url!r} is listed"}}, status=404)
        return _json({"url": url})

    def _authorize(self, request: web.Request) -> None:
        """A listed worker sees prompts: with a deployment secret only its holders list them."""
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").encode()
        if self._secret and not hmac.compare_digest(given, self._secret.encode()):
            raise Forbidden("this needs the deployment's secret as a bearer token")

    async def to_any(self, request: web.Request) -> web.Response:
        """The first answer below 500 that a healthy worker gives."""
        body = await read_body(request)
        for worker in self._healthy():
            answer = await self._send(worker, request.method, request.path, body)
            if answer is not None and answer.status < 500:
                return answer
        raise Unavailable(why_none(list(self._registry)) or "no worker answered", retry_after_s=2)

    async def to_all(self, request: web.Request) -> web.Response:
        """To every worker that runs requests; 502 names those that did not take it."""
        body = await read_body(request)
        workers = [worker for worker in self._registry if worker.state in ("healthy", "draining")]
        answers = await asyncio.gather(
            *(self._send(worker, request.method, request.path, body) for worker in workers)
        )
        failed = [
            worker.spec.url
            for worker, answer in zip(workers, answers, strict=True)
            if answer is None or answer.status >= 400
        ]
        return _json({"workers": len(workers), "failed": failed}, status=502 if failed else 200)

    async def _send(
        self, worker: Worker, method: str, path: str, body: bytes
    ) -> web.Response | None:
        """The worker's answer, or None where it gave none."""
        try:
            async with self._session.request(
                method,
                worker.spec.url + path,
                data=io.BytesIO(body) if body else None,
                headers={"Content-Type": "application/json"} if body else None,
                timeout=ANY_TIMEOUT,
                allow_redirects=False,
            ) as response:
                return web.Response(
                    status=response.status,
                    body=await response.read(),
                    content_type=response.content_type,
                )
        except (aiohttp.ClientError, OSError):
            return None


def readiness(registry: Registry, worker_wait_s: float) -> dict[str, Any]:
    """Ready while one complete route is, or was so lately that requests wait for one; the reason
    otherwise."""
    workers = list(registry)
    why = why_none(workers)
    healthy = [worker for worker in workers if worker.state == "healthy"]
    counts = {role: len(of_role(healthy, role)) for role in get_args(Role)}
    ready = not why or registry.incomplete_s < worker_wait_s
    return {"ready": ready, "reason": why, "routes": len(heads(healthy)), **counts}


def _describe(worker: Worker) -> dict[str, Any]:
    facts = worker.facts
    return {
        "url": worker.spec.url,
        "role": worker.spec.role,
        "state": worker.state,
        "reason": worker.reason,
        "model": worker.model,
        "pairing_key": worker.key,
        "bootstrap_port": worker.bootstrap[1] if worker.spec.role == "prefill" else None,
        "incarnation": facts.incarnation if facts else "",
        "breaker": worker.breaker.state,
        "requests": worker.requests,
        "tokens": worker.tokens,
        "sent": worker.sent,
        "failed": worker.failed,
    }


def _json(value: Any, *, status: int = 200) -> web.Response:
    body = msgspec.json.encode(value)
    return web.Response(status=status, body=body, content_type="application/json")

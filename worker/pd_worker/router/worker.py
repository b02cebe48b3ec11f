"""One worker as the router sees it: what it says of itself, how it is, what runs on it.

Everything runs in the router's one event loop; there are no locks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from yarl import URL

from pd_worker.config import Role
from pd_worker.errors import ConfigError
from pd_worker.router.breaker import Breaker
from pd_worker.router.failure import BAD_GATEWAY, LegFailed

State = Literal["unknown", "healthy", "draining", "not_ready", "unreachable", "refused"]
"""refused: it runs, but is not what it is listed as, or says too little to be paired."""

SILENCES = 3
"""Looks without any answer in a row after which a worker is taken for dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """A worker that should be used."""

    url: str
    """Origin, without a trailing slash: http://host:port."""
    role: Role
    bootstrap_port: int | None = None
    """Prefill: port of its BootstrapServer; None: it says so itself."""

    @classmethod
    def parse(cls, role: Role, text: str) -> WorkerSpec:
        """From URL[,BOOTSTRAP_PORT]; raises ConfigError."""
        address, _, port = text.partition(",")
        if port and not (role == "prefill" and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigError(f"--{role}", f"{port!r} is no bootstrap port", "use 1 to 65535")
        return cls(
            url=_origin(role, address), role=role, bootstrap_port=int(port) if port else None
        )


def _origin(role: Role, address: str) -> str:
    flag = "--worker" if role == "unified" else f"--{role}"
    try:
        url = URL(address)
        if url.scheme in ("http", "https") and url.host and not url.query_string:
            return str(url.origin())
    except ValueError:
        pass
    raise ConfigError(flag, f"{address!r} is no worker's URL", "write http://HOST:PORT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a worker says of itself in /server_info; `raw` is all of it."""

    role: str
    model: str
    pairing_key: str
    incarnation: str
    bootstrap_host: str
    bootstrap_port: int | None
    max_request_tokens: int
    raw: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look at a worker gave; `silent`: nothing in time (a refusal is an answer)."""

    state: State
    reason: str = ""
    facts: Facts | None = None
    silent: bool = False


class Worker:
    """A listed worker. `requests` and `tokens` are what runs on it through this router."""

    def __init__(self, spec: WorkerSpec, breaker: Breaker) -> None:
        self.spec, self.breaker = spec, breaker
        self.state: State = "unknown"
        self.reason = "not looked at yet"
        self.facts: Facts | None = None
        self.requests = self.tokens = self.sent = self.failed = 0
        self.suspect = asyncio.Event()
        """Set to have the worker looked at now instead of at the next interval."""
        self._silences = 0
        self._scopes: set[asyncio.Timeout] = set()

    def __repr__(self) -> str:
        return f"<{self.spec.role} {self.spec.url} {self.state} {self.requests} requests>"

    @property
    def usable(self) -> bool:
        return self.state == "healthy" and self.breaker.allows

    @property
    def key(self) -> str:
        """The pairing key; empty while unknown."""
        return self.facts.pairing_key if self.facts else ""

    @property
    def model(self) -> str:
        return self.facts.model if self.facts else ""

    @property
    def identity(self) -> str:
        """Address and incarnation: a restarted worker is another one, with empty caches."""
        return f"{self.spec.url}#{self.facts.incarnation if self.facts else ''}"

    @property
    def load(self) -> tuple[int, int]:
        """Comparable among workers of a role: prefill works by tokens, decode by requests."""
        if self.spec.role == "prefill":
            return self.tokens, self.requests
        return self.requests, self.tokens

    @property
    def bootstrap(self) -> tuple[str, int | None]:
        """Host and port of a prefill worker's BootstrapServer, the listed port first."""
        facts = self.facts
        host = (facts.bootstrap_host if facts else "") or URL(self.spec.url).host or ""
        return host, self.spec.bootstrap_port or (facts.bootstrap_port if facts else None)

    def observe(self, look: Look) -> None:
        """Take over what a look gave; a worker that stays silent loses what runs on it."""
        self._silences = self._silences + 1 if look.silent else 0
        if look.silent and self._silences < SILENCES:
            return
        if look.facts:
            if self.facts and self.facts.incarnation != look.facts.incarnation:
                self.breaker.reset()
            self.facts = look.facts
        self.state, self.reason = look.state, look.reason
        if look.silent:
            self._end_all()

    def _end_all(self) -> None:
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            scope.reschedule(now)
        self._scopes.clear()

    @asynccontextmanager
    async def leg(self, tokens: int) -> AsyncIterator[None]:
        """What runs inside is one request on this worker, and its end is the breaker's verdict.

        Raises LegFailed when the worker goes silent meanwhile.
        """
        scope = asyncio.timeout(None)
        self._scopes.add(scope)
        self._add(1, tokens)
        self.sent += 1
        self.breaker.begin()
        verdict = self.breaker.neutral
        try:
            async with scope:
                yield
            verdict = self.breaker.success
        except TimeoutError:
            verdict = self.blame
            raise LegFailed(self.spec.url, BAD_GATEWAY, "silent", "stopped answering") from None
        except LegFailed as failure:
            if failure.is_workers_fault:
                verdict = self.blame
            raise
        finally:
            self._scopes.discard(scope)
            self._add(-1, -tokens)
            verdict()

    def blame(self) -> None:
        """A request failed, or ran out of time, through this worker's fault."""
        self.failed += 1
        self.suspect.set()
        self.breaker.failure()

    def _add(self, requests: int, tokens: int) -> None:
        self.requests += requests
        self.tokens += tokens

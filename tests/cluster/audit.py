"""Who asked what of the API server, by the API server's own audit log.

It tells what a program really did, whatever the program counts itself. The log has one line for
each answered request of the users that are watched, without bodies.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

WRITES = ("create", "update", "patch", "delete", "deletecollection")
REVIEWS = ("selfsubjectaccessreviews", "tokenreviews", "subjectaccessreviews")
"""Questions that are asked by creating objects which nobody stores."""


class _User(msgspec.Struct):
    username: str


class _Object(msgspec.Struct):
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


class _Answer(msgspec.Struct):
    code: int = 0


class _Line(msgspec.Struct, rename="camel"):
    stage_timestamp: datetime
    verb: str
    user: _User
    object_ref: _Object = msgspec.field(default_factory=_Object)
    response_status: _Answer = msgspec.field(default_factory=_Answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request that was answered."""

    at: float
    """Of the answer, in seconds since the epoch."""
    user: str
    verb: str
    resource: str
    """Plural, with the subresource: statefulsets, pods/status."""
    namespace: str
    name: str
    """Empty where the server was to see it in a body: objects that are created by POST."""
    code: int

    @property
    def is_write(self) -> bool:
        """It changed what is stored, or was about to. Leases say who lives and do not count."""
        return self.verb in WRITES and self.resource not in (*REVIEWS, "leases")


@dataclass(slots=True, kw_only=True)
class Audit:
    """The log of one API server; reads only what is new."""

    folder: Path
    requests: list[Request] = field(default_factory=list, init=False)
    """All that were read so far."""
    _offset: int = field(default=0, init=False)

    def flags(self, users: Collection[str]) -> Sequence[str]:
        """Of kube-apiserver, so that the log has what these users do; writes the policy."""
        self.folder.mkdir(parents=True, exist_ok=True)
        policy = {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived", "ResponseStarted"],
            "rules": [{"level": "Metadata", "users": list(users)}, {"level": "None"}],
        }
        (self.folder / "policy.json").write_text(json.dumps(policy))
        return (
            f"--audit-policy-file={self.folder / 'policy.json'}",
            f"--audit-log-path={self._log}",
            "--audit-log-maxsize=100000",  # MB; a log that is rotated would lose requests
        )

    def read(self) -> list[Request]:
        """What came since the last call."""
        if not self._log.exists():
            return []
        with self._log.open("rb") as log:
            log.seek(self._offset)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = list(_requests(whole))
        self.requests += new
        return new

    def writes(self, user: str, since: float = 0.0, until: float = float("inf")) -> list[Request]:
        """A user's writes that were accepted in [since, until), by what was read so far."""
        return self.select(user, lambda r: r.is_write and r.code < 400 and since <= r.at < until)

    def select(self, user: str, wanted: Callable[[Request], bool]) -> list[Request]:
        """A user's requests of a kind, by what was read so far."""
        return [each for each in self.requests if each.user == user and wanted(each)]

    @property
    def _log(self) -> Path:
        return self.folder / "audit.log"


def _requests(text: bytes) -> Iterator[Request]:
    decoder = msgspec.json.Decoder(_Line)
    for line in text.splitlines():
        told = decoder.decode(line)
        about = told.object_ref
        parts = [part for part in (about.resource, about.subresource) if part]
        yield Request(
            at=told.stage_timestamp.timestamp(),
            user=told.user.username,
            verb=told.verb,
            resource="/".join(parts),
            namespace=about.namespace,
            name=about.name,
            code=told.response_status.code,
        )

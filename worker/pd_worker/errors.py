"""Every exception that pdserve raises on purpose, as one tree.

PdserveError
├── ConfigError              a command-line option or setting is wrong; names it and the fix
├── ModelError               a model cannot be found, read or served
├── RequestError             one request cannot be served; carries the HTTP status
│   ├── InvalidRequest       400, the client's fault, never retried
│   ├── QueueFull            429, try again later
│   ├── Unavailable          503, this worker is loading, draining or broken
│   └── RequestFailed        accepted, then ended without success; carries its own status
├── TransferError            one KV transfer or one peer failed
│   ├── BackendUnavailable   a transfer engine cannot run on this machine
│   ├── PairingError         two workers disagree on something that must be equal
│   └── WireError            bytes on a socket are not a message of ours
└── IntegrityError           a pool or table broke its own invariant: our bug
"""

from __future__ import annotations


class PdserveError(Exception):
    """Base of the tree above."""


class ConfigError(PdserveError):
    """A setting is wrong: `field` names it, `problem` says why, `fix` says what to do."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(f"{field}: {problem}; {fix}")
        self.field, self.problem, self.fix = field, problem, fix


class ModelError(PdserveError):
    """A model cannot be found, read or served."""


class RequestError(PdserveError):
    """One request cannot be served.

    `status` is the HTTP status, `param` the request field at fault (or None), `code` a short
    machine-readable word, `retry_after_s` the value of Retry-After where waiting can help.
    """

    status = 500
    code = "internal_error"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.message, self.param, self.retry_after_s = message, param, retry_after_s


class InvalidRequest(RequestError):
    """400: the request itself is wrong and will be wrong next time."""

    status = 400
    code = "invalid_request_error"


class QueueFull(RequestError):
    """429: the waiting queue is at its bound."""

    status = 429
    code = "queue_full"


class Unavailable(RequestError):
    """503: this worker is loading, draining or broken."""

    status = 503
    code = "unavailable"


class RequestFailed(RequestError):
    """An accepted request ended without success; `status` and `code` are those of its Finish."""

    def __init__(
        self, message: str, *, status: int, code: str, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.status, self.code = status, code


class TransferError(PdserveError):
    """One KV transfer or one peer failed."""


class BackendUnavailable(TransferError):
    """A transfer engine cannot run on this machine; the message says what is missing."""


class PairingError(TransferError):
    """Two workers disagree on something that must be equal; the message names it."""


class WireError(TransferError):
    """Bytes on a socket are not a message of ours."""


class IntegrityError(PdserveError):
    """A pool or table broke its own invariant: a bug of ours, never a user's fault."""

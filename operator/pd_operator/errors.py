"""Every exception that the operator raises on purpose, as one tree.

OperatorError
├── InvalidSpec       a PDDeployment cannot be understood; waits for its next change
├── ApiError          the API server refused or failed a request; carries the HTTP status
│   ├── NotFound      404
│   ├── Conflict      409: someone else wrote meanwhile, or the object exists
│   ├── Gone          410: a list or watch must start anew
│   ├── Forbidden     403: a permission is missing
│   ├── Refused       400 or 422: the object is wrong and will be wrong next time
│   └── Unreachable   no answer, 429 or 5xx: try again later
├── ForeignObject     an object of a child's name belongs to someone else
└── CommandFailed     kubectl said no; only in the plugin
"""

from __future__ import annotations


class OperatorError(Exception):
    """Base of the tree above."""


class InvalidSpec(OperatorError):
    """A PDDeployment cannot be understood; the message says what is wrong where."""


class ApiError(OperatorError):
    """A request failed: `status` (0 without an answer), and what was asked for in the message."""

    def __init__(
        self, message: str, *, status: int = 0, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409."""


class Gone(ApiError):
    """410, as an answer or inside a watch."""


class Forbidden(ApiError):
    """403."""


class Refused(ApiError):
    """400 or 422."""


class Unreachable(ApiError):
    """No answer, 429 or 5xx."""


class ForeignObject(OperatorError):
    """`kind` `name` exists and is not ours; it is left alone."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"{kind} {name} exists and belongs to someone else: delete it or rename this deployment"
        )
        self.kind, self.name = kind, name


class CommandFailed(OperatorError):
    """The message is what kubectl said."""

"""What ends an attempt before its answer is complete."""

from __future__ import annotations

from pd_worker.errors import PdserveError, RequestError

BAD_GATEWAY = 502
NOT_RETRIED = (501, 504)
"""501 will be the same elsewhere; 504 already used up the request's time."""


class LegFailed(PdserveError):
    """One leg of a request failed; the first one that does decides the client's answer.

    `worker` is the URL of the worker at fault, `status` the HTTP status for the client (the
    worker's own where it gave one), `reason` a short word for metrics, `body` the worker's JSON
    error object or empty, `retry_after` its Retry-After header or empty.
    """

    def __init__(
        self,
        worker: str,
        status: int,
        reason: str,
        message: str,
        *,
        body: bytes = b"",
        retry_after: str = "",
    ) -> None:
        super().__init__(f"{worker}: {message}")
        self.worker, self.status, self.reason, self.message = worker, status, reason, message
        self.body, self.retry_after = body, retry_after

    @property
    def is_workers_fault(self) -> bool:
        """Counts for the breaker: 4xx never does."""
        return self.status >= 500

    @property
    def may_retry(self) -> bool:
        """The same request may succeed when sent again."""
        return self.status >= 500 and self.status not in NOT_RETRIED

    @property
    def is_full(self) -> bool:
        """Another worker may have room; this one has none."""
        return self.status == 429


class ClientGone(PdserveError):
    """The client closed its connection: nobody is left to answer."""


class UnknownModel(RequestError):
    """404: no worker serves the model that the request names."""

    status = 404
    code = "model_not_found"


class Timeout(RequestError):
    """504: the request's time is over."""

    status = 504
    code = "timeout"


class BodyTooLarge(RequestError):
    """413: the request's body is beyond the limit."""

    status = 413
    code = "body_too_large"


class Forbidden(RequestError):
    """403: the deployment's secret is missing or wrong."""

    status = 403
    code = "forbidden"

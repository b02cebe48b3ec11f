"""Errors as HTTP answers: OpenAI's error object, the status, Retry-After.

The middleware is the outer edge of every request: nothing that a handler raises reaches the client
in another form.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from pd_worker.errors import RequestError, RequestFailed

log = logging.getLogger(__name__)


def error_body(error: RequestError) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {
        "error": {
            "message": error.message,
            "type": kind,
            "param": error.param,
            "code": error.code,
        }
    }


def error_response(error: RequestError) -> web.Response:
    """The error as a whole answer."""
    headers = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    return json_response(error_body(error), status=error.status, headers=headers)


def json_response(
    payload: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """Any JSON answer."""
    return web.Response(
        body=msgspec.json.encode(payload),
        status=status,
        headers=headers,
        content_type="application/json",
    )


def unexpected(error: Exception, where: str) -> RequestFailed:
    """500 for a bug of ours; logs it once."""
    log.error("%s failed", where, exc_info=error)
    return RequestFailed("internal error", status=500, code="internal_error")


@web.middleware
async def errors_to_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn whatever a handler raises into an error object."""
    try:
        return await handler(request)
    except RequestError as error:
        return error_response(error)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        code = error.reason.lower().replace(" ", "_")
        response = error_response(RequestFailed(error.reason, status=error.status, code=code))
        if "Allow" in error.headers:
            response.headers["Allow"] = error.headers["Allow"]
        return response
    except Exception as error:  # the edge of a request
        return error_response(unexpected(error, f"{request.method} {request.path}"))

"""Every failure as ``{"error": {"message", "type", "param", "code"}}``, and in Anthropic's shape,
``{"type": "error", "error": {"type", "message"}}``, under the paths of its API.

Messages are those of the error tree, or sentences written here: never a traceback and never
a piece of the request's body.
"""

from __future__ import annotations

import json
import logging
import uuid
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from soup_engine.errors import (
    AuthenticationError,
    InvalidValueError,
    NotFoundError,
    QueueFullError,
    RequestAbortedError,
    RequestError,
    SoupError,
)

logger = logging.getLogger(__name__)


MESSAGES_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    409: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
"""What Anthropic calls an error of a status."""


class MethodNotAllowedError(RequestError):
    """The path exists, but not for this method."""

    status = 405
    code = "method_not_allowed"


class UnhandledError(SoupError):
    """Something broke that nobody foresaw; the log has the details under ``incident``."""

    def __init__(self, incident: str) -> None:
        super().__init__(f"The server failed to answer; its log has the reason under {incident}.")


def error_body(error: SoupError, path: str = "") -> dict[str, Any]:
    """The body in the shape of the API that has the path."""
    if path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/"):
        kind = _ANTHROPIC_TYPES.get(error.status, "api_error")
        return {"type": "error", "error": {"type": kind, "message": error.message}}
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_frame(error: SoupError) -> bytes:
    """The error as a server-sent event, for streams that have begun."""
    return b"data: " + json.dumps(error_body(error)).encode() + b"\n\n"


def error_response(error: SoupError, path: str) -> JSONResponse:
    headers: dict[str, str] = {}
    if isinstance(error, QueueFullError):
        headers["retry-after"] = str(max(1, error.retry_after))
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, RequestAbortedError):
        # The official clients would send it again otherwise, and it was ended on purpose.
        headers["x-should-retry"] = "false"
    return JSONResponse(error_body(error, path), status_code=error.status, headers=headers)


def unhandled(error: Exception) -> UnhandledError:
    """Log what nobody foresaw, with its traceback, and make the error that clients see."""
    incident = f"err-{uuid.uuid4().hex[:12]}"
    logger.error("%s: %s while answering a request", incident, type(error).__name__, exc_info=error)
    return UnhandledError(incident)


async def _soup_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SoupError)
    return error_response(error, request.url.path)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """Starlette's own 404 and 405, in our shape and with its headers (``Allow``)."""
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == HTTPStatus.NOT_FOUND:
        response = error_response(NotFoundError("There is nothing at this path."), path)
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response = error_response(
            MethodNotAllowedError("This path does not take this method; see the Allow header."),
            path,
        )
    else:
        known: SoupError = RequestError(HTTPStatus(error.status_code).phrase + ".")
        response = JSONResponse(error_body(known, path), status_code=error.status_code)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _query_error(request: Request, error: Exception) -> JSONResponse:
    """A path or query value of the wrong type. Bodies have their own reader (``body.py``)."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return error_response(
        InvalidValueError(f"{name}: {first['msg']}.", param=name), request.url.path
    )


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(SoupError, _soup_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _query_error)

"""Every failure as ``{"error": {"message", "type", "param", "code"}}``.

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


class MethodNotAllowedError(RequestError):
    """The path exists, but not for this method."""

    status = 405
    code = "method_not_allowed"


class UnhandledError(SoupError):
    """Something broke that nobody foresaw; the log has the details under ``incident``."""

    def __init__(self, incident: str) -> None:
        super().__init__(f"The server failed to answer; its log has the reason under {incident}.")


def error_body(error: SoupError) -> dict[str, Any]:
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


def error_response(error: SoupError) -> JSONResponse:
    headers: dict[str, str] = {}
    if isinstance(error, QueueFullError):
        headers["retry-after"] = str(max(1, error.retry_after))
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, RequestAbortedError):
        # The official clients would send it again otherwise, and it was ended on purpose.
        headers["x-should-retry"] = "false"
    return JSONResponse(error_body(error), status_code=error.status, headers=headers)


def unhandled(error: Exception) -> UnhandledError:
    """Log what nobody foresaw, with its traceback, and make the error that clients see."""
    incident = f"err-{uuid.uuid4().hex[:12]}"
    logger.error("%s: %s while answering a request", incident, type(error).__name__, exc_info=error)
    return UnhandledError(incident)


async def _soup_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SoupError)
    return error_response(error)


async def _http_error(_request: Request, error: Exception) -> JSONResponse:
    """Starlette's own 404 and 405, in our shape and with its headers (``Allow``)."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        response = error_response(NotFoundError("There is nothing at this path."))
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        response = error_response(
            MethodNotAllowedError("This path does not take this method; see the Allow header.")
        )
    else:
        known: SoupError = RequestError(HTTPStatus(error.status_code).phrase + ".")
        response = JSONResponse(error_body(known), status_code=error.status_code)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response


async def _query_error(_request: Request, error: Exception) -> JSONResponse:
    """A path or query value of the wrong type. Bodies have their own reader (``body.py``)."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return error_response(InvalidValueError(f"{name}: {first['msg']}.", param=name))


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(SoupError, _soup_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _query_error)

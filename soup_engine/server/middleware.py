"""What surrounds every request: the access log and the last net for what nobody foresaw."""

from __future__ import annotations

import asyncio
import logging
import time

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from soup_engine.errors import EngineStoppedError
from soup_engine.server.errors import error_response, unhandled

access_logger = logging.getLogger("soup_engine.server.access")


class AccessLog:
    """ASGI middleware: one line a request, at debug level, without query, headers or body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not access_logger.isEnabledFor(logging.DEBUG):
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0

        async def remember_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, remember_status)
        finally:
            elapsed_ms = (time.perf_counter() - started) * 1e3
            # %a: a path may hold control characters.
            access_logger.debug(
                "%s %a %d %.1f ms", scope["method"], scope["path"], status, elapsed_ms
            )


class ErrorBoundary:
    """ASGI middleware: an exception that nobody foresaw is logged under an id and answered with
    a 500 that names it. It stands inside the guard, so that this answer has CORS headers too.

    A request that is cancelled, which is done when the server has waited for it long enough at
    its end, is answered with an error as well. One whose answer has begun is cut off: its client
    reads nothing, or it would have ended.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def remember_start(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, remember_start)
        except ClientDisconnect:
            return  # it left while it was still sending: nobody waits for an answer
        except asyncio.CancelledError:
            if not started:
                stopped = EngineStoppedError("The server shut down before it could answer.")
                await error_response(stopped, scope["path"])(scope, receive, send)
        except Exception as error:
            failure = unhandled(error)
            if started:
                raise  # too late for an answer: the server cuts the connection
            await error_response(failure, scope["path"])(scope, receive, send)

"""Server-sent events, and noticing that the client went away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


class ClientGoneError(Exception):
    """The client closed its connection before its answer was complete."""


async def unless_client_leaves(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, but cancel it as soon as the client goes away.

    The body of the request must have been read, so that nothing but the disconnect is left to
    receive.

    Raises:
        ClientGoneError: the client went away first; ``work`` was cancelled and has ended.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_client_leaves(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for future in (task, watcher):
            future.cancel()
        # Until both have ended: a cancelled task still has to clean up after itself.
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response that writes each frame as soon as it exists, one write a frame.

    When the client goes away no more frames are asked for, and ``on_client_gone`` is called.
    ``on_end`` is awaited in any case.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        *,
        headers: Mapping[str, str] | None = None,
        on_client_gone: Callable[[], None] | None = None,
        on_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.frames = frames
        self.on_client_gone = on_client_gone
        self.on_end = on_end
        self.status_code = 200
        self.background = None
        self.init_headers(
            {
                "cache-control": "no-cache",
                "x-accel-buffering": "no",  # or nginx holds the stream back
                **(headers or {}),
            }
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        try:
            await unless_client_leaves(receive, self._write(send))
        except ClientGoneError:
            if self.on_client_gone is not None:
                self.on_client_gone()
        finally:
            if self.on_end is not None:
                await self.on_end()

    async def _write(self, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        async with aclosing(self.frames) as frames:
            async for frame in frames:
                await send({"type": "http.response.body", "body": frame, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

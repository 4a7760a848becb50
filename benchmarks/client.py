"""A streaming chat client that costs next to nothing while it runs.

Load generator and server share the processor, so the client only stamps and stores what the
socket hands over. HTTP, chunks, events and JSON are taken apart after the load is over.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where chat completions are asked for, and what every request to this server carries."""

    port: int
    common_body: Mapping[str, Any]
    host: str = "127.0.0.1"
    path: str = "/v1/chat/completions"

    def asking(self, model: str | None) -> Endpoint:
        """The same for another model, such as an adapter; itself when ``None``."""
        if model is None:
            return self
        return replace(self, common_body={**self.common_body, "model": model})

    def request(self, prompt: str, max_tokens: int) -> bytes:
        """One HTTP request; its connection closes at the end, which marks the answer's end."""
        body = json.dumps(
            {
                **self.common_body,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": max_tokens,
                "stream": True,
            }
        ).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            "Content-Type: application/json\r\nAccept: text/event-stream\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + body


class StreamingRequest(asyncio.Protocol):
    """One request in flight: ``readings`` grows as data comes, each with its time stamp."""

    def __init__(self, endpoint: Endpoint, prompt: str, max_tokens: int) -> None:
        self._endpoint = endpoint
        self._request = endpoint.request(prompt, max_tokens)
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started = 0.0
        self.readings: list[tuple[float, bytes]] = []
        self.failure: str | None = None

    @property
    def done(self) -> bool:
        return self._closed.done()

    async def run(self, timeout_s: float, started: float | None = None) -> None:
        """Send the request and wait for the end of the answer.

        Failures are kept in ``failure``, so that one of them does not end the load.
        ``started`` is the time that latencies count from; now, when not given.
        """
        loop = asyncio.get_running_loop()
        self.started = time.perf_counter() if started is None else started
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: self, self._endpoint.host, self._endpoint.port)
                await self._closed
        except TimeoutError:
            self.failure = f"no end of the answer after {timeout_s:.0f} s"
            self.abort()
        except OSError as error:
            self.failure = f"connection failed: {error}"

    def abort(self) -> None:
        """Go away without waiting for the rest of the answer."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.readings.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None and self.failure is None:
            self.failure = f"connection lost: {exc}"
        if not self._closed.done():
            self._closed.set_result(None)

"""The asyncio face of the engine loop: outputs of a step reach an event loop in one wake-up."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import AsyncGenerator
from typing import Protocol

from soup_engine.errors import DuplicateRequestError
from soup_engine.messages import GenerationRequest, RequestOutput


class TakesRequests(Protocol):
    """A thread with an engine on it."""

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. From any thread.

        Raises:
            EngineStoppedError, QueueFullError: it was not queued.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request, if it is still there. From any thread."""
        ...


class _Stream:
    """Outputs of one request on their way to the event loop that awaits them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, answers: int) -> None:
        self.loop = loop
        self.open_answers = answers
        self._outputs: deque[RequestOutput] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def push(self, output: RequestOutput) -> None:
        """On the event loop's thread."""
        self._outputs.append(output)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> RequestOutput:
        while not self._outputs:
            self._waiter = self.loop.create_future()
            await self._waiter
        output = self._outputs.popleft()
        if output.finish_reason is not None:
            self.open_answers -= 1
        return output


class OutputRouter:
    """Brings outputs from the engine thread to the streams that wait for them."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}
        self._lock = threading.Lock()

    def open(self, request: GenerationRequest) -> _Stream:
        """A stream for a request, on the running event loop.

        Raises:
            DuplicateRequestError: another request in flight has this id.
        """
        stream = _Stream(asyncio.get_running_loop(), request.params.n)
        with self._lock:
            if request.request_id in self._streams:
                raise DuplicateRequestError(
                    f"A request with the id {request.request_id!r} is already in flight."
                )
            self._streams[request.request_id] = stream
        return stream

    def close(self, request_id: str) -> None:
        with self._lock:
            del self._streams[request_id]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._streams

    def deliver(self, outputs: list[RequestOutput]) -> None:
        """On the engine thread: one wake-up for each event loop, however many outputs."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Stream, RequestOutput]]]
        by_loop = defaultdict(list)
        with self._lock:
            for output in outputs:
                stream = self._streams.get(output.request_id)
                if stream is not None:
                    by_loop[stream.loop].append((stream, output))
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_push_all, batch)
            except RuntimeError:  # the loop was closed with its streams still open
                continue


def _push_all(batch: list[tuple[_Stream, RequestOutput]]) -> None:
    for stream, output in batch:
        stream.push(output)


async def generate(
    engine: TakesRequests, router: OutputRouter, request: GenerationRequest
) -> AsyncGenerator[RequestOutput, None]:
    """Outputs of a request until each of its answers ended; leaving early aborts it.

    Raises:
        DuplicateRequestError, EngineStoppedError, QueueFullError: it was not queued.
    """
    stream = router.open(request)
    try:
        engine.submit(request)
    except BaseException:
        router.close(request.request_id)
        raise
    try:
        while stream.open_answers:
            yield await stream.next()
    finally:
        router.close(request.request_id)
        if stream.open_answers:
            engine.abort(request.request_id)

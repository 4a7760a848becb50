"""From requests to the engine to the frames or the body of an HTTP answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from starlette.responses import JSONResponse, Response
from starlette.types import Receive

from soup_engine.adapters.records import AdapterLease
from soup_engine.backends.base import Backend
from soup_engine.errors import (
    EngineStepError,
    EngineStoppedError,
    RequestAbortedError,
    SoupError,
)
from soup_engine.messages import (
    DraftCounts,
    FinishReason,
    GenerationRequest,
    RequestOutput,
    Usage,
)
from soup_engine.server.errors import unhandled
from soup_engine.server.protocol.answers import Answer, AnswerFormat, total_usage
from soup_engine.server.protocol.speculation import total_drafts
from soup_engine.server.sse import ClientGoneError, EventStream, unless_client_leaves


class Generation:
    """The engine's outputs for the prompts of one HTTP request.

    ``begin`` raises what the engine has against the requests, iterating yields until every
    answer has ended, and ``close`` aborts what has not: whoever begins must close.
    """

    def __init__(self, backend: Backend, requests: Sequence[GenerationRequest]) -> None:
        self._backend = backend
        self._requests = requests
        self._first_choice = {
            request.request_id: number * request.params.n for number, request in enumerate(requests)
        }
        self._not_begun = {request.request_id: request for request in requests}
        self._open = sum(request.params.n for request in requests)
        self._usages: dict[str, dict[int, Usage]] = {key: {} for key in self._first_choice}
        self._drafts: list[DraftCounts | None] = []
        self._source = (
            self._outputs_of(requests[0]) if len(requests) == 1 else self._merged_outputs()
        )
        self._first_output: asyncio.Future[RequestOutput | None] | None = None

    @property
    def num_answers(self) -> int:
        return sum(request.params.n for request in self._requests)

    @property
    def usage(self) -> Usage:
        """Of the answers that have ended."""
        return total_usage(self._usages.values())

    @property
    def drafts(self) -> DraftCounts | None:
        """Of the answers that have ended; ``None`` where the engine does not speculate."""
        return total_drafts(self._drafts)

    def choice_index(self, output: RequestOutput) -> int:
        """Choices are numbered through: all answers to the first prompt, then the next ones."""
        return self._first_choice[output.request_id] + output.index

    async def begin(self) -> None:
        """Queue the requests.

        Raises:
            RequestError, EngineStoppedError: the engine refuses one of them.
        """
        for request in self._requests:
            self._backend.check(request)
        # Others may have filled the queue since; an engine that says so at once can still be
        # heard before the answer's status has left.
        self._first_output = asyncio.ensure_future(anext(self._source, None))
        await asyncio.sleep(0)
        if self._first_output.done():
            error = self._first_output.exception()
            if error is not None:
                raise error

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> RequestOutput:
        """The next output.

        Raises:
            SoupError: an answer ended with an error; the others are not waited for.
        """
        first, self._first_output = self._first_output, None
        output = await (first if first is not None else anext(self._source, None))
        if output is not None:
            self._note(output)
            return output
        if self._open:
            raise EngineStoppedError("The engine ended before the answer was complete.")
        raise StopAsyncIteration

    def _note(self, output: RequestOutput) -> None:
        if output.finish_reason is None:
            return
        self._open -= 1
        self._drafts.append(output.drafts)
        if output.usage is not None:
            self._usages[output.request_id][output.index] = output.usage
        if output.finish_reason is FinishReason.ABORT:
            # No API of ours has such a finish reason, and the answer is not a whole one.
            raise RequestAbortedError("The request was ended by an administrator of the server.")
        if output.finish_reason is FinishReason.ERROR:
            raise output.error or EngineStepError("The engine failed to complete the answer.")

    async def _outputs_of(self, request: GenerationRequest) -> AsyncGenerator[RequestOutput, None]:
        outputs = self._backend.generate(request)
        # From here on nothing is awaited before the backend runs, which then owns the lease.
        del self._not_begun[request.request_id]
        if isinstance(outputs, AsyncGenerator):
            async with aclosing(outputs):
                async for output in outputs:
                    yield output
        else:
            async for output in outputs:
                yield output

    async def _merged_outputs(self) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of several requests, in the order in which they come."""
        queue: asyncio.Queue[RequestOutput | Exception | None] = asyncio.Queue()

        async def pump(request: GenerationRequest) -> None:
            try:
                async for output in self._outputs_of(request):
                    queue.put_nowait(output)
            except Exception as error:
                queue.put_nowait(error)  # raised where the outputs are awaited
            else:
                queue.put_nowait(None)

        pumps = [asyncio.ensure_future(pump(request)) for request in self._requests]
        try:
            running = len(pumps)
            while running:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def close(self) -> None:
        """End everything, and abort what has not ended by itself. May be called again."""
        if self._first_output is not None:
            self._first_output.cancel()
            await asyncio.wait((self._first_output,))
        await self._source.aclose()
        if self._open:
            for request in self._requests:
                self._backend.abort(request.request_id)
        self._give_back_leases()

    def _give_back_leases(self) -> None:
        """Of the requests that the backend never got."""
        adapters = self._backend.adapters
        for request in self._not_begun.values():
            if adapters is not None and isinstance(request.lease, AdapterLease):
                adapters.registry.release(request.lease)
        self._not_begun.clear()


async def frames(
    generation: Generation, answer_format: AnswerFormat, *, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The stream of a generation: chunks, the usage if asked for, and the end in any case.

    Whoever iterates closes the generation.
    """
    try:
        async for output in generation:
            chunk = answer_format.chunk(generation.choice_index(output), output)
            if chunk:
                yield chunk.encode()
        usage = generation.usage if include_usage else None
        last = answer_format.last_chunk(usage, generation.drafts)
        if last:
            yield last.encode()
    except SoupError as error:
        yield answer_format.failure(error)
    except Exception as error:
        yield answer_format.failure(unhandled(error))
    yield answer_format.end


async def collect(generation: Generation) -> list[Answer]:
    """All answers, complete.

    Raises:
        SoupError: one of them ended with an error.
    """
    answers = [Answer() for _ in range(generation.num_answers)]
    try:
        async for output in generation:
            answers[generation.choice_index(output)].add(output)
    finally:
        await generation.close()
    return answers


async def respond(
    generation: Generation,
    answer_format: AnswerFormat,
    *,
    backend: Backend,
    receive: Receive,
    request_id: str,
    headers: Mapping[str, str],
    stream: bool,
    include_usage: bool,
) -> Response:
    """The HTTP answer of a generation that has begun. A client that leaves is counted."""
    headers = {**dict.fromkeys(answer_format.request_id_headers, request_id), **headers}
    if stream:
        return EventStream(
            frames(generation, answer_format, include_usage=include_usage),
            headers=headers,
            on_client_gone=backend.record_disconnect,
            on_end=generation.close,
        )
    try:
        answers = await unless_client_leaves(receive, collect(generation))
    except ClientGoneError:
        backend.record_disconnect()
        return Response(status_code=499, headers=headers)  # nobody is left to read it
    return JSONResponse(answer_format.whole(answers, generation.usage), headers=headers)

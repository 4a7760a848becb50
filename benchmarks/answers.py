"""From the stamped bytes of a streamed answer to its tokens and times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.client import StreamingRequest

_HEADERS_END = b"\r\n\r\n"
_EVENT_END = b"\n\n"


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One answered or failed request. Times are seconds of ``time.perf_counter``.

    Attributes:
        finished: when the last event came, or the failure was noticed.
        text_times: when each event that carries text came.
        output_tokens: as the server counts them, or by the model's tokenizer where it does not.
        error: why the answer is not complete.
    """

    started: float
    finished: float
    text_times: tuple[float, ...]
    prompt_tokens: int | None
    output_tokens: int
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        return self.text_times[0] - self.started if self.text_times else None

    @property
    def gaps(self) -> list[float]:
        """ITL: the time from each event with text to the next one."""
        return [later - earlier for earlier, later in pairwise(self.text_times)]

    @property
    def e2e(self) -> float:
        return self.finished - self.started


class ChunkDecoder:
    """Takes the chunks of ``Transfer-Encoding: chunked`` apart (RFC 9112, section 7.1)."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._left = 0  # bytes of the current chunk still to come, with the CRLF behind it
        self.complete = False

    def feed(self, data: bytes) -> bytes:
        """The content that the bytes so far give and that was not returned yet."""
        self._buffer += data
        content = bytearray()
        while not self.complete:
            if self._left == 0:
                line, separator, rest = self._buffer.partition(b"\r\n")
                if not separator:
                    break
                size = int(line.split(b";")[0], 16)
                self._buffer = rest
                self.complete = size == 0
                self._left = size + 2
            else:
                part = self._buffer[: self._left]
                if not part:
                    break
                content += part[: max(0, self._left - 2)]
                del self._buffer[: len(part)]
                self._left -= len(part)
        return bytes(content)


@dataclass(slots=True)
class _Response:
    """What a response's head says, and its body's events as they came."""

    status: int
    events: list[tuple[float, bytes]]
    rest: bytes
    complete: bool


def _parse_response(readings: Sequence[tuple[float, bytes]]) -> _Response | None:
    """Split a response into head and events; ``None`` while its head is not whole."""
    head = b""
    buffer = b""
    decoder: ChunkDecoder | None = None
    response: _Response | None = None
    for time_, data in readings:
        if response is None:
            head += data
            head_text, separator, data = head.partition(_HEADERS_END)
            if not separator:
                continue
            response = _Response(int(head_text.split(b" ", 2)[1]), [], b"", False)
            if b"transfer-encoding: chunked" in head_text.lower():
                decoder = ChunkDecoder()
        buffer += decoder.feed(data) if decoder is not None else data
        *whole, buffer = buffer.split(_EVENT_END)
        response.events += [(time_, event) for event in whole]
    if response is not None:
        response.rest = buffer
        response.complete = decoder is None or decoder.complete
    return response


def _payloads(events: Sequence[tuple[float, bytes]]) -> Iterator[tuple[float, bytes]]:
    """The data of server-sent events, without comments and the end mark."""
    for time_, event in events:
        for line in event.splitlines():
            if line.startswith(b"data:"):
                payload = line[len(b"data:") :].strip()
                if payload != b"[DONE]":
                    yield time_, payload


def text_times(readings: Sequence[tuple[float, bytes]]) -> tuple[float, ...]:
    """When each event with text came, of an answer that may not be complete."""
    response = _parse_response(readings)
    return () if response is None else _read_events(response).text_times


@dataclass(frozen=True, slots=True)
class PartialAnswer:
    """What came of an answer before somebody went away, or all of it.

    Attributes:
        status: of HTTP; ``None`` when not even the head came.
        model: what the server says was used.
        text: so far; of an error, the body.
        complete: whether its end came, too.
    """

    status: int | None
    model: str | None
    text: str
    complete: bool


def partial_answer(readings: Sequence[tuple[float, bytes]]) -> PartialAnswer:
    """What the bytes so far say."""
    response = _parse_response(readings)
    if response is None:
        return PartialAnswer(None, None, "", False)
    if response.status != 200:
        body = b"\n".join([*(event for _, event in response.events), response.rest])
        return PartialAnswer(response.status, None, body.decode(errors="replace"), True)
    content = _read_events(response)
    complete = response.complete and content.finish_reason is not None and content.error is None
    return PartialAnswer(response.status, content.model, content.text, complete)


@dataclass(slots=True)
class _Content:
    text: str = ""
    model: str | None = None
    text_times: tuple[float, ...] = ()
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str | None = None
    error: str | None = None


def _read_events(response: _Response) -> _Content:
    content = _Content()
    times: list[float] = []
    parts: list[str] = []
    for time_, payload in _payloads(response.events):
        event = json.loads(payload)
        if event.get("error"):
            content.error = f"the server reported {json.dumps(event['error'])[:200]}"
        content.model = event.get("model", content.model)
        for choice in event.get("choices", ()):
            part = choice.get("delta", {}).get("content")
            if part:
                times.append(time_)
                parts.append(part)
            content.finish_reason = choice.get("finish_reason") or content.finish_reason
        if usage := event.get("usage"):
            content.prompt_tokens = usage["prompt_tokens"]
            content.output_tokens = usage["completion_tokens"]
    content.text_times = tuple(times)
    content.text = "".join(parts)
    return content


def read_result(request: StreamingRequest, count_tokens: Callable[[str], int]) -> RequestResult:
    """What came of a request that has ended; an answer without its end is an error.

    ``count_tokens`` counts the tokens of a text for servers that report no usage.
    """
    last_time = request.readings[-1][0] if request.readings else request.started
    response = _parse_response(request.readings)
    content = _Content() if response is None else _read_events(response)
    error = request.failure or content.error
    if error is None and response is not None and response.status != 200:
        body = (b"\n".join(event for _, event in response.events) + response.rest)[:300]
        error = f"HTTP {response.status}: {body.decode(errors='replace')}"
    if error is None and (
        response is None or not response.complete or content.finish_reason is None
    ):
        error = "the answer broke off before its end"
    output_tokens = content.output_tokens
    return RequestResult(
        started=request.started,
        finished=last_time,
        text_times=content.text_times,
        prompt_tokens=content.prompt_tokens,
        output_tokens=count_tokens(content.text) if output_tokens is None else output_tokens,
        error=error,
    )

from __future__ import annotations

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.answers import (
    ChunkDecoder,
    PartialAnswer,
    RequestResult,
    partial_answer,
    read_result,
    text_times,
)
from benchmarks.client import Endpoint, StreamingRequest

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunked(*contents: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(content), content) for content in contents)


def event(content: str | None = None, finish: str | None = None, **extra: object) -> bytes:
    delta = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return f"data: {json.dumps({'choices': [choice], **extra})}\n\n".encode()


def answer(*readings: tuple[float, bytes], failure: str | None = None) -> RequestResult:
    async def make() -> RequestResult:
        request = StreamingRequest(Endpoint(1, {}), "a prompt", 1)
        request.started = 1.0
        request.readings = list(readings)
        request.failure = failure
        return read_result(request, lambda text: len(text.split()))

    return asyncio.run(make())


@given(
    st.lists(st.binary(min_size=1, max_size=30), max_size=6),
    st.lists(st.integers(0, 300), max_size=12),
)
def test_chunks_are_put_together_however_the_bytes_arrive(
    contents: list[bytes], cuts: list[int]
) -> None:
    body = chunked(*contents) + b"0\r\n\r\n"
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    decoder = ChunkDecoder()
    parts = [decoder.feed(body[a:b]) for a, b in pairwise(places)]
    assert b"".join(parts) == b"".join(contents)
    assert decoder.complete


def test_chunks_without_their_end_are_not_complete() -> None:
    decoder = ChunkDecoder()
    assert decoder.feed(chunked(b"some") + b"5\r\nhal") == b"somehal"
    assert not decoder.complete


def test_times_are_those_of_events_with_text() -> None:
    result = answer(
        (1.5, HEAD + chunked(event("", role="assistant"))),
        (2.0, chunked(event("Par"))),
        (2.25, chunked(event("is"), event(""))),
        (3.0, chunked(event(None, "length"), b"data: [DONE]\n\n") + b"0\r\n\r\n"),
    )
    assert result.error is None
    assert result.ttft == 1.0
    assert result.gaps == [0.25]
    assert result.e2e == 2.0


def test_usage_counts_before_the_text_does() -> None:
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9}}\n\n'
    end = (3.0, chunked(event(None, "stop"), usage) + b"0\r\n\r\n")
    counted = answer((2.0, HEAD + chunked(event("one two three"))), end)
    assert (counted.prompt_tokens, counted.output_tokens) == (5, 9)
    uncounted = answer(
        (2.0, HEAD + chunked(event("one two three"), event(None, "stop")) + b"0\r\n\r\n")
    )
    assert (uncounted.prompt_tokens, uncounted.output_tokens) == (None, 3)


def test_an_event_split_over_readings_counts_when_it_is_whole() -> None:
    body = chunked(event("Paris"))
    readings = [(2.0, HEAD + body[:20]), (2.5, body[20:])]
    assert text_times(readings) == (2.5,)


@pytest.mark.parametrize(
    ("readings", "failure", "reason"),
    [
        ([], "connection failed: refused", "connection failed: refused"),
        ([], None, "broke off"),
        ([(2.0, b"HTTP/1.1 200")], None, "broke off"),
        ([(2.0, HEAD + chunked(event("Par")))], None, "broke off"),
        ([(2.0, HEAD + chunked(event("Par")) + b"0\r\n\r\n")], None, "broke off"),
        ([(2.0, b"HTTP/1.1 429 Too Many\r\n\r\n{full}")], None, "HTTP 429: {full}"),
        (
            [(2.0, HEAD + chunked(b'data: {"error": "no memory"}\n\n') + b"0\r\n\r\n")],
            None,
            "no memory",
        ),
    ],
)
def test_an_answer_without_its_end_is_an_error(
    readings: list[tuple[float, bytes]], failure: str | None, reason: str
) -> None:
    error = answer(*readings, failure=failure).error
    assert error is not None
    assert reason in error


def test_what_came_of_an_answer_that_was_left() -> None:
    begun = [(1.0, HEAD + chunked(event("one ", model="chat"))), (2.0, chunked(event("two")))]
    assert partial_answer(begun) == PartialAnswer(200, "chat", "one two", False)
    ended = [*begun, (3.0, chunked(event(finish="length", model="chat")) + b"0\r\n\r\n")]
    assert partial_answer(ended) == PartialAnswer(200, "chat", "one two", True)
    assert partial_answer([]) == PartialAnswer(None, None, "", False)
    refused = [(1.0, b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone")]
    assert partial_answer(refused) == PartialAnswer(404, None, "none", True)

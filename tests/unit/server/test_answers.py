"""Chunks and whole answers, as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

from soup_engine.messages import (
    AlternativeToken,
    FinishReason,
    RequestOutput,
    TokenLogprob,
    Usage,
)
from soup_engine.server.protocol.answers import (
    LOWEST_LOGPROB,
    Answer,
    ChatFormat,
    CompletionFormat,
    total_usage,
)
from soup_engine.server.protocol.generation import Envelope

ENVELOPE = Envelope(request_id='id"1', created=7, model='m"\n')


def output(text: str = "", **fields: Any) -> RequestOutput:
    return RequestOutput(request_id="r", index=0, text=text, token_ids=(), **fields)


def parse(frames: str) -> list[dict[str, Any]]:
    return [json.loads(frame.removeprefix("data: ")) for frame in frames.split("\n\n") if frame]


def test_text_survives_whatever_it_holds() -> None:
    text = 'quote " slash \\ newline \n\n data: [DONE] \u2028 😀 \x00'
    chat = ChatFormat(ENVELOPE)
    _, chunk = parse(chat.chunk(0, output(text)))
    assert chunk["choices"][0]["delta"]["content"] == text
    assert (chunk["id"], chunk["model"], chunk["created"]) == ('id"1', 'm"\n', 7)
    (chunk,) = parse(CompletionFormat(ENVELOPE).chunk(0, output(text)))
    assert chunk["choices"][0]["text"] == text


def test_nothing_is_sent_for_nothing() -> None:
    assert ChatFormat(ENVELOPE).chunk(0, output()) == ""
    assert CompletionFormat(ENVELOPE).chunk(0, output()) == ""


def test_an_empty_answer_still_opens_and_ends() -> None:
    chunks = parse(ChatFormat(ENVELOPE).chunk(0, output(finish_reason=FinishReason.LENGTH)))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[1]["choices"][0]["delta"] == {}
    assert chunks[1]["choices"][0]["finish_reason"] == "length"


def test_log_probabilities_of_held_text_are_not_lost() -> None:
    entry = logprob("a", -0.5)
    chat = ChatFormat(ENVELOPE, with_logprobs=True)
    chunk = parse(chat.chunk(0, output(logprobs=(entry,))))[-1]
    assert chunk["choices"][0]["logprobs"]["content"][0]["token"] == "a"


def logprob(text: str, value: float) -> TokenLogprob:
    token = AlternativeToken(1, text, value, text.encode())
    return TokenLogprob(chosen=token, top=(token,))


def test_infinity_is_not_json() -> None:
    answer = Answer()
    answer.add(output("a", logprobs=(logprob("a", -math.inf),)))
    for made in (ChatFormat, CompletionFormat):
        whole = made(ENVELOPE, with_logprobs=True).whole([answer], Usage(1, 1))
        assert str(LOWEST_LOGPROB) in json.dumps(whole, allow_nan=False)


def test_offsets_go_on_from_chunk_to_chunk() -> None:
    completion = CompletionFormat(ENVELOPE, with_logprobs=True)
    chunks = [
        parse(completion.chunk(index, output(text, logprobs=(logprob(text, -1.0),))))[0]
        for index, text in ((0, "ab"), (1, "x"), (0, "c"), (1, "y"))
    ]
    offsets = [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks]
    assert offsets == [[0], [0], [2], [1]]


def test_usage_of_several_answers_and_prompts() -> None:
    first = {1: Usage(10, 3, 8), 0: Usage(10, 2, 4)}
    assert total_usage([first, {0: Usage(5, 1)}, {}]) == Usage(15, 6, 4)

"""Answers in the shapes of Anthropic's messages, whole and as a stream of events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from soup_engine.errors import SoupError
from soup_engine.messages import FinishReason, RequestOutput, Usage
from soup_engine.server.errors import MESSAGES_PATH, error_body
from soup_engine.server.protocol.answers import Answer, AnswerFormat
from soup_engine.server.protocol.generation import Envelope


class MessageFormat(AnswerFormat):
    """One answer. A stream goes ``message_start``, ``content_block_start``, any number of
    ``content_block_delta``, ``content_block_stop``, ``message_delta``, ``message_stop``; an answer
    without text has no block.

    Args:
        prompt_tokens: told before the first text. How many of them were cached is told at the end.
    """

    request_id_headers: ClassVar[tuple[str, ...]] = ("request-id", "x-request-id")

    def __init__(self, envelope: Envelope, prompt_tokens: int) -> None:
        self._envelope = envelope
        self._prompt_tokens = prompt_tokens
        self._started = False
        self._block_open = False

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        (answer,) = answers
        text = "".join(answer.text)
        return {
            **self._head(),
            "content": [{"type": "text", "text": text}] if text else [],
            **_ending(answer.finish_reason, answer.stop_reason),
            "usage": _usage(usage),
        }

    def chunk(self, index: int, output: RequestOutput) -> str:  # noqa: ARG002
        ended = output.finish_reason is not None
        if not output.text and not ended:
            return ""
        events = "" if self._started else self._start()
        if output.text and not self._block_open:
            self._block_open = True
            block = {"type": "text", "text": ""}
            events += _event("content_block_start", {"index": 0, "content_block": block})
        if output.text:
            delta = {"type": "text_delta", "text": output.text}
            events += _event("content_block_delta", {"index": 0, "delta": delta})
        return events + self._stop(output) if ended else events

    def failure(self, error: SoupError) -> bytes:
        body = error_body(error, MESSAGES_PATH)
        return f"event: error\ndata: {json.dumps(body)}\n\n".encode()

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._envelope.request_id,
            "type": "message",
            "role": "assistant",
            "model": self._envelope.model,
        }

    def _start(self) -> str:
        self._started = True
        message = {
            **self._head(),
            "content": [],
            **_ending(None, None),
            "usage": _usage(Usage(self._prompt_tokens, 0, 0)),
        }
        return _event("message_start", {"message": message})

    def _stop(self, last: RequestOutput) -> str:
        assert last.usage is not None, "an answer that ended has its usage"
        ending = _ending(last.finish_reason, last.stop_reason)
        stop = _event("content_block_stop", {"index": 0}) if self._block_open else ""
        delta = _event("message_delta", {"delta": ending, "usage": _usage(last.usage)})
        return stop + delta + _event("message_stop", {})


def _event(kind: str, members: Mapping[str, Any]) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n"


def _ending(reason: FinishReason | None, stop: str | int | None) -> dict[str, str | None]:
    """Why an answer ended, and the text that ended it."""
    word = None
    if reason is FinishReason.LENGTH:
        word = "max_tokens"
    elif reason is not None:
        word = "stop_sequence" if isinstance(stop, str) else "end_turn"
    return {"stop_reason": word, "stop_sequence": stop if isinstance(stop, str) else None}


def _usage(usage: Usage) -> dict[str, int]:
    """Here cached tokens of the prompt are not among its ``input_tokens``, but beside them."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }

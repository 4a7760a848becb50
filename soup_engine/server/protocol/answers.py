"""Answers as an API writes them, whole and in chunks; here in OpenAI's shapes.

Chunks are put together from a prefix that is made once a stream and the JSON of the new text:
no model is built for a token, since the server shares its cores with the engine.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from soup_engine.errors import SoupError
from soup_engine.messages import (
    AlternativeToken,
    DraftCounts,
    FinishReason,
    RequestOutput,
    TokenLogprob,
    Usage,
)
from soup_engine.server.errors import error_frame
from soup_engine.server.protocol.generation import Envelope
from soup_engine.server.protocol.speculation import drafts_json, total_drafts
from soup_engine.server.sse import DONE

LOWEST_LOGPROB = -9999.0
"""Stands for a probability of 0, since JSON has no infinity; OpenAI's own choice."""


@dataclass(slots=True)
class Answer:
    """One choice, as far as it has come."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    drafts: DraftCounts | None = None

    def add(self, output: RequestOutput) -> None:
        self.text.append(output.text)
        self.logprobs.extend(output.logprobs)
        if output.finish_reason is not None:
            self.finish_reason = output.finish_reason
            self.stop_reason = output.stop_reason
            self.usage = output.usage
            self.drafts = output.drafts


class AnswerFormat(ABC):
    """How one HTTP request's answers are written down.

    Attributes:
        end: what follows the last event of a stream, also after an error.
        request_id_headers: names under which the request's id goes out.
    """

    end: ClassVar[bytes] = b""
    request_id_headers: ClassVar[tuple[str, ...]] = ("x-request-id",)

    @abstractmethod
    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        """The body of an answer that is not streamed."""

    @abstractmethod
    def chunk(self, index: int, output: RequestOutput) -> str:
        """Server-sent event(s) for what a step added to a choice; "" when it added nothing."""

    def last_chunk(self, usage: Usage | None, drafts: DraftCounts | None) -> str:  # noqa: ARG002
        """What is said when all answers have ended; "" where their last chunks said it.

        Args:
            usage, drafts: of all answers, where they were asked for.
        """
        return ""

    @abstractmethod
    def failure(self, error: SoupError) -> bytes:
        """An error as a server-sent event, for streams that have begun."""


class OpenAIFormat(AnswerFormat):
    """What chats and plain completions have in common.

    Attributes:
        with_logprobs: log-probabilities were asked for.
        with_metrics: what became of the drafts was asked for.
    """

    end = DONE
    whole_object: str
    chunk_object: str

    def __init__(
        self,
        envelope: Envelope,
        *,
        with_logprobs: bool = False,
        include_usage: bool = False,
        with_metrics: bool = False,
    ) -> None:
        self.with_logprobs = with_logprobs
        self.with_metrics = with_metrics
        self._envelope = envelope
        head = json.dumps(self._head(self.chunk_object), separators=(",", ":"))[:-1]
        self._prefix = f'data: {head},"choices":[{{"index":'
        self._last_prefix = f'data: {head},"choices":[],'
        self._suffix = '}],"usage":null}\n\n' if include_usage else "}]}\n\n"

    def whole(self, answers: Sequence[Answer], usage: Usage) -> dict[str, Any]:
        return {
            **self._head(self.whole_object),
            "choices": [self._choice(index, answer) for index, answer in enumerate(answers)],
            "usage": usage_json(usage),
            **self._metrics(total_drafts(answer.drafts for answer in answers)),
        }

    def failure(self, error: SoupError) -> bytes:
        return error_frame(error)

    def last_chunk(self, usage: Usage | None, drafts: DraftCounts | None) -> str:
        """The last chunk of a stream whose client asked for the usage or for metrics; "" for one
        who asked for neither."""
        members = {"usage": usage_json(usage)} if usage is not None else {}
        members |= self._metrics(drafts)
        return f"{self._last_prefix}{json.dumps(members)[1:]}\n\n" if members else ""

    @abstractmethod
    def _choice(self, index: int, answer: Answer) -> dict[str, Any]: ...

    def _metrics(self, drafts: DraftCounts | None) -> dict[str, Any]:
        if not self.with_metrics:
            return {}
        return {"metrics": {"speculative_decoding": drafts_json(drafts)}}

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._envelope.request_id,
            "object": kind,
            "created": self._envelope.created,
            "model": self._envelope.model,
            "system_fingerprint": None,
        }

    def _chunk(self, index: int, content: str, logprobs: str, output: RequestOutput) -> str:
        """``content`` is the member that holds the new text, ``logprobs`` JSON or ``null``."""
        reason = output.finish_reason
        end = (
            "null"
            if reason is None
            else f'"{reason.value}","stop_reason":{json.dumps(output.stop_reason)}'
        )
        return (
            f'{self._prefix}{index},{content},"logprobs":{logprobs},"finish_reason":{end}'
            f"{self._suffix}"
        )


class ChatFormat(OpenAIFormat):
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, envelope: Envelope, **asked: bool) -> None:
        super().__init__(envelope, **asked)
        self._opened: set[int] = set()

    def chunk(self, index: int, output: RequestOutput) -> str:
        """A choice opens with a chunk that names its role. That goes out together with the
        first text, so that a client's time to the first chunk is that to the first token."""
        if not output.text and not output.logprobs and output.finish_reason is None:
            return ""
        opening = ""
        if index not in self._opened:
            self._opened.add(index)
            opening = (
                f'{self._prefix}{index},"delta":{{"role":"assistant","content":""}},'
                f'"logprobs":null,"finish_reason":null{self._suffix}'
            )
        delta = f'"delta":{{"content":{json.dumps(output.text)}}}' if output.text else '"delta":{}'
        logprobs = (
            json.dumps(_chat_logprobs(output.logprobs))
            if self.with_logprobs and output.logprobs
            else "null"
        )
        return opening + self._chunk(index, delta, logprobs, output)

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return {
            "index": index,
            "message": {
                "role": "assistant",
                "content": "".join(answer.text),
                "refusal": None,
            },
            "logprobs": _chat_logprobs(answer.logprobs) if self.with_logprobs else None,
            "finish_reason": _reason(answer),
            "stop_reason": answer.stop_reason,
        }


class CompletionFormat(OpenAIFormat):
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, envelope: Envelope, **asked: bool) -> None:
        super().__init__(envelope, **asked)
        self._offsets: dict[int, int] = {}

    def chunk(self, index: int, output: RequestOutput) -> str:
        if not output.text and not output.logprobs and output.finish_reason is None:
            return ""
        logprobs = "null"
        if self.with_logprobs and output.logprobs:
            start = self._offsets.get(index, 0)
            listed = _completion_logprobs(output.logprobs, start)
            self._offsets[index] = start + _length(output.logprobs)
            logprobs = json.dumps(listed)
        return self._chunk(index, f'"text":{json.dumps(output.text)}', logprobs, output)

    def _choice(self, index: int, answer: Answer) -> dict[str, Any]:
        return {
            "index": index,
            "text": "".join(answer.text),
            "logprobs": _completion_logprobs(answer.logprobs, 0) if self.with_logprobs else None,
            "finish_reason": _reason(answer),
            "stop_reason": answer.stop_reason,
        }


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def total_usage(by_prompt: Iterable[Mapping[int, Usage]]) -> Usage:
    """Over all prompts and their answers (by index): a prompt counts once, however many
    answers it has, and so do its cached tokens (those that its first answer found)."""
    prompt_tokens = completion_tokens = cached_tokens = 0
    for usages in by_prompt:
        if not usages:
            continue
        first = usages[min(usages)]
        prompt_tokens += first.prompt_tokens
        cached_tokens += first.cached_tokens
        completion_tokens += sum(usage.completion_tokens for usage in usages.values())
    return Usage(prompt_tokens, completion_tokens, cached_tokens)


def _reason(answer: Answer) -> str | None:
    return None if answer.finish_reason is None else answer.finish_reason.value


def _logprob(token: AlternativeToken) -> float:
    return max(token.logprob, LOWEST_LOGPROB)


def _chat_logprobs(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    return {
        "content": [
            {
                **_chat_token(entry.chosen),
                "top_logprobs": [_chat_token(token) for token in entry.top],
            }
            for entry in logprobs
        ],
        "refusal": None,
    }


def _chat_token(token: AlternativeToken) -> dict[str, Any]:
    return {
        "token": token.text,
        "logprob": _logprob(token),
        "bytes": list(token.raw_bytes),
    }


def _completion_logprobs(logprobs: Sequence[TokenLogprob], start: int) -> dict[str, Any]:
    """The older shape: parallel lists. ``start`` is the offset of the first token's text."""
    offsets: list[int] = []
    for entry in logprobs:
        offsets.append(start)
        start += len(entry.chosen.text)
    return {
        "tokens": [entry.chosen.text for entry in logprobs],
        "token_logprobs": [_logprob(entry.chosen) for entry in logprobs],
        # The chosen token stands among the alternatives, as OpenAI has it.
        "top_logprobs": [
            {token.text: _logprob(token) for token in (entry.chosen, *entry.top)}
            for entry in logprobs
        ],
        "text_offset": offsets,
    }


def _length(logprobs: Sequence[TokenLogprob]) -> int:
    return sum(len(entry.chosen.text) for entry in logprobs)

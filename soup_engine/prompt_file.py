"""Files of prompts: JSON lines with ``prompt`` or ``messages``, or lines of plain text.

What is wrong with a line is said with its number, and the others are used all the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from soup_engine.errors import PromptFileError

ROLES = ("system", "user", "assistant")
MAX_LINE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class FilePrompt:
    """A chat that the model is to go on with; a ``prompt`` is one message of a user.

    Attributes:
        line: its number in the file, from 1.
    """

    line: int
    messages: tuple[ChatMessage, ...]

    def as_chat(self) -> list[dict[str, str]]:
        """The messages as chat templates want them."""
        return [{"role": item.role, "content": item.content} for item in self.messages]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that was left out: ``reason`` goes on a sentence that begins with "line 7"."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class PromptFile:
    prompts: tuple[FilePrompt, ...]
    bad_lines: tuple[BadLine, ...] = ()


def read_prompt_file(path: Path) -> PromptFile:
    """Read all lines; empty ones are passed over.

    Raises:
        PromptFileError: the file cannot be read, or no line of it can be used.
    """
    try:
        # Bytes that are no UTF-8 spoil their own line only. Not splitlines(), which also splits at
        # characters that may stand inside a JSON string.
        lines = path.read_bytes().split(b"\n")
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise PromptFileError(f"The prompts cannot be read from {path}: {reason}.") from error
    prompts: list[FilePrompt] = []
    bad_lines: list[BadLine] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            prompts.append(FilePrompt(number, _asked(parse_line(line))))
        except BadPromptError as error:
            bad_lines.append(BadLine(number, str(error)))
    if not prompts:
        raise PromptFileError(_nothing_usable(path, bad_lines))
    return PromptFile(tuple(prompts), tuple(bad_lines))


class BadPromptError(Exception):
    """It is no prompt; the message goes on a sentence that begins with where it stands."""


def _nothing_usable(path: Path, bad_lines: list[BadLine]) -> str:
    if not bad_lines:
        return f"{path} holds no prompts."
    first = bad_lines[0]
    return f"{path} holds no prompt that can be used: line {first.line} {first.reason}."


def parse_line(line: bytes) -> tuple[ChatMessage, ...]:
    """The chat in a line that is not empty.

    Raises:
        BadPromptError: there is none.
    """
    if len(line) > MAX_LINE_BYTES:
        raise BadPromptError(f"is longer than {MAX_LINE_BYTES:,} bytes")
    try:
        text = line.decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise BadPromptError("is not valid UTF-8") from None
    if not text.startswith(("{", "[")):
        return parse_entry(text)
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError):
        raise BadPromptError("is not valid JSON") from None
    return parse_entry(entry)


def parse_entry(entry: object) -> tuple[ChatMessage, ...]:
    """The chat in text, ``{"prompt": text}`` or ``{"messages": [{"role", "content"}, …]}``.

    Raises:
        BadPromptError: it is none of these.
    """
    if isinstance(entry, str):
        return (ChatMessage("user", _text(entry)),)
    if not isinstance(entry, dict) or len(entry.keys() & {"prompt", "messages"}) != 1:
        raise BadPromptError("must have either a prompt or messages")
    if "prompt" in entry:
        return (ChatMessage("user", _text(entry["prompt"])),)
    messages = entry["messages"]
    if not isinstance(messages, list) or not messages:
        raise BadPromptError("must have a list of messages")
    return tuple(map(_message, messages))


def _asked(chat: tuple[ChatMessage, ...]) -> tuple[ChatMessage, ...]:
    """Logs of traffic end with the answer, which is not what is asked."""
    while chat and chat[-1].role == "assistant":
        chat = chat[:-1]
    if not chat:
        raise BadPromptError("has no message to answer")
    return chat


def _message(item: object) -> ChatMessage:
    if not isinstance(item, dict) or item.get("role") not in ROLES:
        raise BadPromptError("has a message whose role is not system, user or assistant")
    return ChatMessage(item["role"], _text(item.get("content")))


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise BadPromptError("has no text where some is needed")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise BadPromptError("holds a lone surrogate, which is no character")
    return value

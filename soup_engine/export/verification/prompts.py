"""What both models are asked: a fixed set in the package, and the user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, NoReturn

from soup_engine.errors import ExportError

MAX_PROMPTS = 200
MAX_CHARACTERS = 8_000


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat, written by the model's chat template, or plain text that is continued as it is.

    Attributes:
        text: plain text, where there are no messages.
        scored: the text itself is scored, as it stands, and nothing is generated after it: for
            perplexity, which only says something about text that no model wrote.
    """

    messages: tuple[Message, ...] = ()
    text: str = ""
    scored: bool = False

    def to_json(self) -> dict[str, Any]:
        return {
            "messages": [{"role": m.role, "content": m.content} for m in self.messages],
            "text": self.text,
            "scored": self.scored,
        }

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Prompt:
        messages = tuple(Message(item["role"], item["content"]) for item in fields["messages"])
        return cls(messages, fields["text"], fields["scored"])


def fixed_prompts() -> tuple[Prompt, ...]:
    """The set in the package: questions, and passages for perplexity."""
    text = files(__package__).joinpath("prompts.jsonl").read_text(encoding="utf-8")
    found = []
    for line in text.splitlines():
        entry = json.loads(line)
        if "passage" in entry:
            found.append(Prompt(text=entry["passage"], scored=True))
        else:
            found.append(_chat(entry["prompt"]))
    return tuple(found)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The user's prompts: a line each, either JSON with ``prompt`` or ``messages``, or plain
    text that does not begin with a brace.

    Raises:
        ExportError: the file cannot be read, holds nothing, or a line is wrong; says which.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ExportError(
            f"The prompts cannot be read from {path}: {(error.strerror or str(error)).lower()}.",
            param="verify_prompts",
        ) from error
    except UnicodeDecodeError as error:
        raise ExportError(f"{path} is not valid UTF-8.", param="verify_prompts") from error
    # Not splitlines(), which also splits at characters that may stand inside a JSON string.
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), 1)]
    found = tuple(_read_line(path.name, number, line) for number, line in lines if line)
    if not found:
        raise ExportError(f"{path} holds no prompts.", param="verify_prompts")
    if len(found) > MAX_PROMPTS:
        raise ExportError(
            f"{path} holds {len(found)} prompts, more than {MAX_PROMPTS}.", param="verify_prompts"
        )
    return found


def _read_line(name: str, number: int, line: str) -> Prompt:
    if not line.startswith(("{", "[")):
        return parse_prompt(line, f"Line {number} of {name}")
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ExportError(
            f"Line {number} of {name} is not valid JSON.", param="verify_prompts"
        ) from error
    return parse_prompt(entry, f"Line {number} of {name}")


def parse_prompt(entry: object, where: str) -> Prompt:
    """A prompt from text, ``{"prompt": text}`` or ``{"messages": [{"role", "content"}, …]}``.

    Args:
        where: what the entry is called in a message.

    Raises:
        ExportError: it is none of these.
    """
    if isinstance(entry, str):
        return _chat(_text(entry, where))
    if not isinstance(entry, dict) or len(entry.keys() & {"prompt", "messages"}) != 1:
        _refuse(where, "must have either a prompt or messages")
    if "prompt" in entry:
        return _chat(_text(entry["prompt"], where))
    messages = entry["messages"]
    if not isinstance(messages, list) or not messages:
        _refuse(where, "must have a list of messages")
    return Prompt(tuple(_message(item, where) for item in messages))


def _message(item: object, where: str) -> Message:
    if not isinstance(item, dict) or item.get("role") not in ("system", "user", "assistant"):
        _refuse(where, "has a message whose role is not system, user or assistant")
    return Message(item["role"], _text(item.get("content"), where))


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value.strip():
        _refuse(where, "has no text where some is needed")
    if len(value) > MAX_CHARACTERS:
        _refuse(where, f"is longer than {MAX_CHARACTERS:,} characters")
    return value


def _chat(text: str) -> Prompt:
    return Prompt((Message("user", text),))


def _refuse(where: str, what: str) -> NoReturn:
    raise ExportError(f"{where} {what}.", param="verify_prompts")

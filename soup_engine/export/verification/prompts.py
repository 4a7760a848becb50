"""What both models are asked: a fixed set in the package, and the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from soup_engine.errors import ExportError
from soup_engine.prompt_file import BadPromptError, ChatMessage, parse_entry, parse_line

MAX_PROMPTS = 200
MAX_CHARACTERS = 8_000


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat, written by the model's chat template, or plain text that is continued as it is.

    Attributes:
        text: plain text, where there are no messages.
        scored: the text itself is scored, as it stands, and nothing is generated after it: for
            perplexity, which only says something about text that no model wrote.
    """

    messages: tuple[ChatMessage, ...] = ()
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
        messages = tuple(ChatMessage(item["role"], item["content"]) for item in fields["messages"])
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
            found.append(Prompt((ChatMessage("user", entry["prompt"]),)))
    return tuple(found)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """The user's prompts: a line each, either JSON with ``prompt`` or ``messages``, or plain
    text that does not begin with a brace.

    Raises:
        ExportError: the file cannot be read, holds nothing, or a line is wrong; says which.
    """
    try:
        # Not splitlines(), which also splits at characters that may stand inside a JSON string.
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ExportError(
            f"The prompts cannot be read from {path}: {(error.strerror or str(error)).lower()}.",
            param="verify_prompts",
        ) from error
    found = tuple(
        _prompt(partial(parse_line, line), f"Line {number} of {path.name}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    )
    if not found:
        raise ExportError(f"{path} holds no prompts.", param="verify_prompts")
    if len(found) > MAX_PROMPTS:
        raise ExportError(
            f"{path} holds {len(found)} prompts, more than {MAX_PROMPTS}.", param="verify_prompts"
        )
    return found


def parse_prompt(entry: object, where: str) -> Prompt:
    """A prompt from text, ``{"prompt": text}`` or ``{"messages": [{"role", "content"}, …]}``.

    Args:
        where: what the entry is called in a message.

    Raises:
        ExportError: it is none of these.
    """
    return _prompt(partial(parse_entry, entry), where)


def _prompt(parse: Callable[[], tuple[ChatMessage, ...]], where: str) -> Prompt:
    try:
        messages = parse()
    except BadPromptError as error:
        raise ExportError(f"{where} {error}.", param="verify_prompts") from error
    if any(len(message.content) > MAX_CHARACTERS for message in messages):
        raise ExportError(
            f"{where} is longer than {MAX_CHARACTERS:,} characters.", param="verify_prompts"
        )
    return Prompt(messages)

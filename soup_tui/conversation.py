"""A conversation with the served model, as it is sent and as it is saved."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soup_engine.errors import InvalidValueError
from soup_engine.sampling_params import SamplingParams
from soup_tui.service import ChatRequest


@dataclass(slots=True)
class Turn:
    """What one side said; ``figures`` belong to answers."""

    role: str
    content: str
    figures: str = ""
    answered_by: str | None = None


@dataclass(slots=True)
class Conversation:
    """Turns in order; a question is always followed by its answer or by nothing."""

    system: str = ""
    turns: list[Turn] = field(default_factory=list)
    adapter: str | None = None
    params: SamplingParams = field(default_factory=SamplingParams)

    def request(self) -> ChatRequest:
        """For an answer to the last question."""
        messages = [("system", self.system)] if self.system else []
        messages += [(turn.role, turn.content) for turn in self.turns]
        return ChatRequest(messages=tuple(messages), params=self.params, adapter=self.adapter)

    def drop_answer(self) -> bool:
        """Take back the last answer, so that it can be given anew; False without a question."""
        if self.turns and self.turns[-1].role == "assistant":
            self.turns.pop()
        return bool(self.turns)

    def take_back(self) -> str | None:
        """Take back the last question with its answer; the question."""
        if not self.drop_answer():
            return None
        return self.turns.pop().content

    def save(self, path: Path) -> None:
        """Append the conversation as one line of JSON: ``{"messages": […], "adapter": …}``.

        Raises:
            OSError: the file cannot be written.
        """
        messages: list[dict[str, Any]] = []
        if self.system:
            messages.append({"role": "system", "content": self.system})
        messages += [{"role": turn.role, "content": turn.content} for turn in self.turns]
        line = json.dumps({"messages": messages, "adapter": self.adapter}, ensure_ascii=False)
        with path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


_KINDS: dict[str, type[int] | type[float]] = {
    "max_tokens": int,
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "seed": int,
    "repetition_penalty": float,
}


def params_line(params: SamplingParams) -> str:
    """Sampling settings in one line: ``max_tokens=512 temperature=0.7 …``."""
    values = ((name, getattr(params, name)) for name in _KINDS)
    return " ".join(f"{name}={value:g}" for name, value in values if value is not None)


def params_from_line(line: str) -> SamplingParams:
    """What ``params_line`` writes, in any order; what is left out has its default.

    Raises:
        InvalidValueError: says which setting is wrong.
    """
    values: dict[str, Any] = {}
    for word in line.split():
        name, _, text = word.partition("=")
        if name not in _KINDS:
            raise InvalidValueError(f"There is no setting {name!r}; there are {', '.join(_KINDS)}.")
        try:
            values[name] = _KINDS[name](text)
        except ValueError as error:
            raise InvalidValueError(f"{name} is a number, not {text!r}.") from error
    return SamplingParams(**values)

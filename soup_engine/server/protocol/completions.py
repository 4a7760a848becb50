"""The body of ``POST /v1/completions``, where the prompt is plain text or tokens."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from soup_engine.backends.base import ModelInfo
from soup_engine.errors import InvalidValueError
from soup_engine.server.protocol.fields import Int, wrong_type
from soup_engine.server.protocol.generation import GenerationBody

MAX_PROMPTS = 128

Prompt: TypeAlias = str | tuple[int, ...]

_ONE_OF = "a string, a list of strings, a list of token ids or a list of such lists"


def _prompts(value: Any) -> Any:
    """Any of the four shapes as a tuple of prompts."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise wrong_type(_ONE_OF)
    if _are_token_ids(value):
        return (tuple(value),)
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) and item and _are_token_ids(item) for item in value):
        return tuple(tuple(item) for item in value)
    raise wrong_type(_ONE_OF)


def _are_token_ids(items: list[Any]) -> bool:
    return all(type(item) is int for item in items)


class CompletionBody(GenerationBody):
    """``logprobs`` is a number here: how many alternatives to report for each token."""

    prompt: Annotated[Any, BeforeValidator(_prompts)]
    logprobs: Int | None = None

    def prompts(self) -> tuple[Prompt, ...]:
        prompts: tuple[Prompt, ...] = self.prompt
        return prompts

    def wanted_logprobs(self) -> int | None:
        return self.logprobs

    def check(self, model: ModelInfo) -> None:
        super().check(model)
        if len(self.prompts()) > MAX_PROMPTS:
            raise InvalidValueError(
                f"prompt holds {len(self.prompts())} prompts; at most {MAX_PROMPTS} go into one "
                "request.",
                param="prompt",
            )
        for prompt in self.prompts():
            if not isinstance(prompt, str):
                check_token_ids(prompt, model, "prompt")


def check_token_ids(token_ids: tuple[int, ...], model: ModelInfo, name: str) -> None:
    """Raises InvalidValueError: an id is outside the model's vocabulary."""
    for token_id in (min(token_ids), max(token_ids)):
        if not 0 <= token_id < model.vocab_size:
            raise InvalidValueError(
                f"{name} holds the token {token_id}; this model's are 0 to {model.vocab_size - 1}.",
                param=name,
            )

"""The body of ``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from soup_engine.backends.base import ModelInfo
from soup_engine.errors import InvalidValueError, UnsupportedParameterError
from soup_engine.sampling_params import MAX_LOGPROBS
from soup_engine.server.protocol.fields import Int, RequestBody, field_name, wrong_type
from soup_engine.server.protocol.generation import GenerationBody

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Role of a message → role that the template sees. ``developer`` is OpenAI's newer word for
``system``, which few templates know."""

_UNBUILT_ROLES = ("tool", "function")
_UNBUILT_IN_MESSAGE = (
    "annotations",
    "audio",
    "function_call",
    "refusal",
    "tool_call_id",
    "tool_calls",
)


class ContentPart(RequestBody):
    """A piece of a message; only those of type ``text`` are built."""

    type: str
    text: str | None = None


def content_parts(value: Any) -> Any:
    """For validators: a plain string is one part."""
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if isinstance(value, list):
        return value
    raise wrong_type("a string or a list of text parts")


class ChatMessage(RequestBody):
    """One turn. ``content`` is a string or a list of text parts, joined by line breaks."""

    role: str
    content: Annotated[Sequence[ContentPart], BeforeValidator(content_parts), Field(min_length=1)]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_fields(cls, value: Any) -> Any:
        """Answers of earlier turns come back with ``tool_calls: null`` and the like."""
        if not isinstance(value, dict):
            return value
        return {k: v for k, v in value.items() if v or k not in _UNBUILT_IN_MESSAGE}


class ChatFields(RequestBody):
    """How messages become a prompt; shared with ``/tokenize``.

    Attributes:
        add_generation_prompt: open the assistant's turn. On, unless the last message is to be
            continued.
        continue_final_message: leave the last message open, so that the answer goes on with it.
        chat_template_kwargs: variables for the model's chat template.
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def template_messages(self) -> list[dict[str, str]]:
        """The messages as the template wants them, with their contents as text.

        Raises:
            InvalidValueError: a role or a content is none.
            UnsupportedParameterError: tools, images, audio or files.
        """
        return [flatten(message, i) for i, message in enumerate(self.messages)]

    def continues(self) -> bool:
        """Whether the last message is left open."""
        return bool(self.continue_final_message)

    def opens_answer(self) -> bool:
        """Whether the prompt ends with the opening of the assistant's turn.

        Raises:
            InvalidValueError: the last message is to be continued as well.
        """
        if self.add_generation_prompt is None:
            return not self.continues()
        if self.add_generation_prompt and self.continues():
            raise InvalidValueError(
                "continue_final_message and add_generation_prompt contradict each other; "
                "set one of them.",
                param="continue_final_message",
            )
        return self.add_generation_prompt


class ChatCompletionBody(GenerationBody, ChatFields):
    logprobs: bool | None = None
    top_logprobs: Int | None = None

    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self, model: ModelInfo) -> None:
        super().check(model)
        if self.top_logprobs is None:
            return
        if not 0 <= self.top_logprobs <= MAX_LOGPROBS:
            raise InvalidValueError(
                f"top_logprobs must be from 0 to {MAX_LOGPROBS}.", param="top_logprobs"
            )
        if self.top_logprobs and not self.logprobs:
            raise InvalidValueError("top_logprobs needs logprobs to be true.", param="top_logprobs")


def flatten(message: ChatMessage, index: int) -> dict[str, str]:
    """A message as the template wants it.

    Raises:
        InvalidValueError, UnsupportedParameterError: as ``ChatFields.template_messages``.
    """
    at = field_name(("messages", index))
    role = _ROLES.get(message.role)
    if role is None:
        if message.role in _UNBUILT_ROLES:
            raise UnsupportedParameterError(
                f"{at}.role is {message.role!r}, and tools are not supported.", param=f"{at}.role"
            )
        raise InvalidValueError(
            f"{at}.role must be one of {', '.join(_ROLES)}.", param=f"{at}.role"
        )
    for name in _UNBUILT_IN_MESSAGE:
        if name in (message.model_extra or {}):
            raise UnsupportedParameterError(
                f"{at}.{name} is not supported; leave it out.", param=f"{at}.{name}"
            )
    flat = {"role": role, "content": joined_text(message.content, f"{at}.content")}
    if message.name is not None:
        flat["name"] = message.name
    return flat


def joined_text(parts: Sequence[ContentPart], at: str) -> str:
    """The text of parts, by lines; ``at`` is the field that has them.

    Raises:
        InvalidValueError, UnsupportedParameterError: as ``ChatFields.template_messages``.
    """
    return "\n".join(_part_text(part, f"{at}[{i}]") for i, part in enumerate(parts))


def _part_text(part: ContentPart, at: str) -> str:
    if part.type != "text":
        raise UnsupportedParameterError(
            f"{at} is not of the type 'text', the only one supported.", param=at
        )
    if part.text is None:
        raise InvalidValueError(f"{at}.text is missing.", param=f"{at}.text")
    return part.text

"""The bodies of Anthropic's ``POST /v1/messages`` and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from soup_engine.backends.base import ModelInfo
from soup_engine.config import ServerConfig
from soup_engine.errors import InvalidValueError
from soup_engine.sampling_params import SamplingParams
from soup_engine.server.protocol.chat import (
    ChatMessage,
    ContentPart,
    content_parts,
    flatten,
    joined_text,
)
from soup_engine.server.protocol.fields import (
    Float,
    Int,
    RequestBody,
    StopStrings,
    field_name,
)
from soup_engine.server.protocol.generation import check_length, or_default
from soup_engine.server.protocol.unbuilt import UNBUILT_IN_MESSAGES, AsksForNothing

ROLES = ("user", "assistant", "system")
_DEFAULTS = SamplingParams()


class TextBlock(ContentPart):
    """A piece of a turn; only those of type ``text`` are built.

    Attributes:
        cache_control, citations: ask for nothing more: what prompts have in common is kept
            without being told, and a plain text cites nothing.
    """

    cache_control: Any = None
    citations: Any = None


class Turn(ChatMessage):
    """One turn, a string or a list of text blocks, which are joined by line breaks."""

    content: Annotated[Sequence[TextBlock], BeforeValidator(content_parts), Field(min_length=1)]


class MessagesFields(RequestBody):
    """How turns become a prompt. A last turn of the assistant is continued by the answer.

    Attributes:
        model, adapter: what is to answer, see ``selection``.
        chat_template_kwargs: variables for the model's chat template.
    """

    unbuilt: ClassVar[Mapping[str, AsksForNothing]] = UNBUILT_IN_MESSAGES

    model: str
    messages: Annotated[list[Turn], Field(min_length=1)]
    system: Annotated[list[TextBlock], BeforeValidator(content_parts)] | None = None
    adapter: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def template_messages(self) -> list[dict[str, str]]:
        """The turns as the template wants them, the system prompt first.

        Raises:
            InvalidValueError: a role or a content is none.
            UnsupportedParameterError: tools, images or documents.
        """
        system = joined_text(self.system or (), "system")
        first = [{"role": "system", "content": system}] if system else []
        return [*first, *(_flat(turn, index) for index, turn in enumerate(self.messages))]

    def continues(self) -> bool:
        return self.messages[-1].role == "assistant"

    def opens_answer(self) -> bool:
        return not self.continues()


class Metadata(RequestBody):
    """``user_id``: who asks; shown in the table of requests."""

    user_id: str | None = None


class MessagesBody(MessagesFields):
    """Fields of a generation.

    Attributes:
        stop_sequences: texts that end the answer, and are not part of it.
        cache_salt: keeps the prompt's cached prefix apart from those of other salts.
    """

    max_tokens: Int
    temperature: Float | None = None
    top_p: Float | None = None
    top_k: Int | None = None
    stop_sequences: StopStrings = ()
    stream: bool | None = None
    metadata: Metadata | None = None
    cache_salt: str | None = None

    @property
    def asker(self) -> str | None:
        return None if self.metadata is None else self.metadata.user_id

    def sampling_params(
        self, prompt_tokens: int, model: ModelInfo, config: ServerConfig
    ) -> SamplingParams:
        """As ``GenerationBody.sampling_params``."""
        check_length(self.max_tokens, prompt_tokens, model, config, param="max_tokens")
        try:
            return SamplingParams(
                max_tokens=self.max_tokens,
                temperature=or_default(self.temperature, _DEFAULTS.temperature),
                top_p=or_default(self.top_p, _DEFAULTS.top_p),
                top_k=or_default(self.top_k, _DEFAULTS.top_k),
                stop=self.stop_sequences,
            )
        except InvalidValueError as error:
            if error.param != "stop":
                raise
            # By the name that it has here.
            sentence = error.message.replace("stop", "stop_sequences", 1)
            raise InvalidValueError(sentence, param="stop_sequences") from error


def _flat(turn: Turn, index: int) -> dict[str, str]:
    if turn.role not in ROLES:
        at = field_name(("messages", index, "role"))
        raise InvalidValueError(f"{at} must be one of {', '.join(ROLES)}.", param=at)
    return flatten(turn, index)

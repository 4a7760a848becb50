"""Chat messages to text, by the model's own template."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from jinja2 import TemplateError

from soup_engine.engine.template_reading import unread
from soup_engine.errors import ChatTemplateError, InvalidValueError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ChatMessages: TypeAlias = Sequence[Mapping[str, Any]]

CUT = "\ufdd0"
"""Marks where a rendered chat is cut into pieces. A Unicode noncharacter, kept free for the
private use of programs, so that no text of a user should hold it; one that does is only cut."""


class ChatTemplate:
    """Renders chats with the template of a tokenizer, or in a plain format where it has none.

    The plain format, its blocks separated by empty lines::

        System: You are terse.

        User: What is the capital of France?

        Assistant:

    What clients write stays text: where a message or a template variable spells one of the
    tokenizer's special tokens (say ``<|im_end|>``), the rendered text is cut within it, and the
    pieces are to be tokenised apart, so that only the template itself can write special tokens.

    Attributes:
        available: the model has a template of its own.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self.available = bool(tokenizer.chat_template)
        added = tokenizer.added_tokens_decoder.values()
        special = {token.content for token in added if token.special}
        special |= {*tokenizer.all_special_tokens}  # which slow tokenizers do not flag
        # A token of one character cannot be cut.
        longest_first = sorted((text for text in special if len(text) > 1), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        own_names = inspect.signature(tokenizer.apply_chat_template).parameters
        self._reserved = {*own_names, "messages", "conversations"}

    def render(
        self,
        messages: ChatMessages,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        template: str | None = None,
    ) -> list[str]:
        """The chat as pieces of text, which are to be tokenised apart; nearly always one.

        Templates that want user and assistant to alternate refuse turns of one role that follow
        each other. Only then are such turns joined, by an empty line, and tried once more.

        Args:
            continue_final_message: leave the last message open, so that the model goes on with
                it; ``add_generation_prompt`` then counts for nothing.
            template_kwargs: variables for the template.
            template: Jinja source to use instead of the model's own.

        Raises:
            ChatTemplateError: the template refused the messages; with its own reason.
            InvalidValueError: there are no messages, one has no role, the last one cannot be
                continued, or a template variable has a name that is not free.
        """
        if not messages:
            raise InvalidValueError("messages must hold at least one message.", param="messages")
        if not all(isinstance(message.get("role"), str) for message in messages):
            raise InvalidValueError("Every message needs a role.", param="messages")
        if continue_final_message and not isinstance(messages[-1].get("content"), str):
            raise InvalidValueError(
                "continue_final_message needs a last message with text in it.", param="messages"
            )
        taken = sorted(self._reserved & {*(template_kwargs or {})})
        if taken:
            raise InvalidValueError(
                f"chat_template_kwargs cannot set {', '.join(taken)}: "
                "only variables of the model's own template.",
                param="chat_template_kwargs",
            )
        chat = [self._cut_special(_without_none(message)) for message in messages]
        options = {
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
            "continue_final_message": continue_final_message,
        }
        if template is None and not self.available:
            return _plain_format(chat, **options).split(CUT)
        variables = self._cut_special({**(template_kwargs or {})})
        source = self._source() if template is None else template
        return self._render_or_merge(source, chat, options | variables).split(CUT)

    def unread(
        self,
        messages: ChatMessages,
        template_kwargs: Mapping[str, Any] | None = None,
        template: str | None = None,
    ) -> tuple[str, ...]:
        """Names of what is in a chat that was rendered, and that its template never looks at."""
        source = self._source() if template is None and self.available else template
        return unread(source, messages, template_kwargs or {})

    def _render_or_merge(
        self, source: str, chat: list[dict[str, Any]], options: dict[str, Any]
    ) -> str:
        try:
            return self._render(source, chat, options)
        except ChatTemplateError as error:
            merged = _merge_turns(chat)
            if len(merged) == len(chat) or not isinstance(error.__cause__, TemplateError):
                raise
        return self._render(source, merged, options)

    def _render(self, source: str, chat: list[dict[str, Any]], options: dict[str, Any]) -> str:
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                chat, chat_template=source, tokenize=False, **options
            )
        except Exception as error:
            # A template is a program of the model's author: it may raise anything.
            raise ChatTemplateError(_reason(error, options), param="messages") from error
        return rendered

    def _source(self) -> str:
        templates = self._tokenizer.chat_template
        if isinstance(templates, str):
            return templates
        if len(templates) == 1:
            (template,) = templates.values()
        elif "default" in templates:
            template = templates["default"]
        else:
            raise ChatTemplateError(
                f"The model has the chat templates {', '.join(sorted(templates))}, "
                "and none of them is called default."
            )
        source: str = template
        return source

    def _cut_special(self, value: Any) -> Any:
        if isinstance(value, str):
            # What follows the cut may itself spell a special token.
            while self._special.search(value):
                value = self._special.sub(_cut_match, value)
            return value
        if isinstance(value, Mapping):
            return {key: self._cut_special(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._cut_special(item) for item in value]
        return value


def _cut_match(match: re.Match[str]) -> str:
    return match[0][0] + CUT + match[0][1:]


def _without_none(message: Mapping[str, Any]) -> dict[str, Any]:
    """Clients send ``"tool_calls": null`` and the like, which templates take for a value."""
    return {key: value for key, value in message.items() if value is not None}


def _merge_turns(chat: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Joins turns of one role that follow each other, where they are nothing but text."""
    merged: list[dict[str, Any]] = []
    for message in chat:
        last = merged[-1] if merged else {}
        if last.get("role") == message.get("role") and _is_text(last) and _is_text(message):
            merged[-1] = {**last, "content": f"{last['content']}\n\n{message['content']}"}
        else:
            merged.append(message)
    return merged


def _is_text(message: Mapping[str, Any]) -> bool:
    return message.keys() == {"role", "content"} and isinstance(message["content"], str)


def _plain_format(
    chat: list[dict[str, Any]], *, add_generation_prompt: bool, continue_final_message: bool
) -> str:
    blocks = [f"{message['role'].title()}: {message.get('content', '')}" for message in chat]
    if add_generation_prompt:
        blocks.append("Assistant:")
    text = "\n\n".join(blocks)
    return text if add_generation_prompt or continue_final_message else text + "\n\n"


def _reason(error: Exception, options: Mapping[str, Any]) -> str:
    """The template's own words where it has some, and never the messages themselves."""
    if isinstance(error, TemplateError):
        return f"The model's chat template refused the messages: {error.message}"
    if isinstance(error, ValueError) and options["continue_final_message"]:
        return "The model's chat template changes the last message, so it cannot be continued."
    return f"The model's chat template failed on the messages ({type(error).__name__}: {error})."

"""The tokens and the text of the fake backend: a character of Unicode is a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from soup_engine.backends.base import ChatMessages
from soup_engine.errors import ChatTemplateError
from soup_engine.messages import AlternativeToken, TokenLogprob

BOS, EOS, TURN = 0, 1, 2
"""Special tokens; ``TURN`` opens a turn of a chat."""

_SPECIAL = ("<bos>", "<eos>", "<turn>")
VOCAB_SIZE = len(_SPECIAL) + 0x110000


class CharacterText:
    """A tokenizer whose tokens are the characters of Unicode, and a plain chat format::

    <turn>user
    Hello.<turn>assistant
    """

    def render_chat(
        self,
        messages: ChatMessages,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
        template: str | None = None,
    ) -> tuple[int, ...]:
        """``template_kwargs`` may hold ``greeting``, a text that stands before the first turn;
        ``template`` is no Jinja here, but a text that stands before that."""
        if any(message["role"] == "system" for message in messages[1:]):
            raise ChatTemplateError(
                "Only the first message may be from the system.", param="messages"
            )
        tokens = [
            BOS,
            *self.encode(
                (template or "") + str((template_kwargs or {}).get("greeting", "")),
                add_special_tokens=False,
            ),
        ]
        for message in messages:
            turn = f"{message['role']}\n{message['content']}"
            tokens += (TURN, *self.encode(turn, add_special_tokens=False))
        if add_generation_prompt and not continue_final_message:
            tokens += (TURN, *self.encode("assistant\n", add_special_tokens=False))
        return tuple(tokens)

    def unread_in_chat(
        self,
        messages: ChatMessages,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        template: str | None = None,  # noqa: ARG002 - the same whatever stands first
    ) -> tuple[str, ...]:
        """Names, and all variables but ``greeting``."""
        variables = sorted({*(template_kwargs or {})} - {"greeting"})
        names = ["messages.name"] if any("name" in message for message in messages) else []
        return (*(f"chat_template_kwargs.{name}" for name in variables), *names)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        start = (BOS,) if add_special_tokens else ()
        return (*start, *(ord(character) + len(_SPECIAL) for character in text))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        strings = self.token_strings(token_ids)
        if skip_special_tokens:
            strings = [
                string
                for string, token in zip(strings, token_ids, strict=True)
                if token >= len(_SPECIAL)
            ]
        return "".join(strings)

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        return [token_string(token) for token in token_ids]


def token_string(token: int) -> str:
    if token < len(_SPECIAL):
        return _SPECIAL[token]
    code_point = token - len(_SPECIAL)
    # Half a surrogate pair is no character and could not leave as UTF-8.
    return "\ufffd" if 0xD800 <= code_point <= 0xDFFF else chr(code_point)


def last_turn(prompt: Sequence[int]) -> tuple[int, ...]:
    """What was said last in a chat, without its role; else the prompt without ``BOS``."""
    turns = [i for i, token in enumerate(prompt) if token == TURN]
    if not turns:
        return tuple(token for token in prompt if token != BOS)
    start, end = (*turns, len(prompt))[-3:-1] if len(turns) > 1 else (turns[0], len(prompt))
    turn = tuple(prompt[start + 1 : end])
    line_end = ord("\n") + len(_SPECIAL)
    return turn[turn.index(line_end) + 1 :] if line_end in turn else turn


def made_up_logprobs(token: int, alternatives: int) -> TokenLogprob:
    """Made-up but steady: the chosen token halves the mass, each alternative the rest."""
    ranked = [token, *(token + i for i in range(1, alternatives))][:alternatives]
    chosen = _alternative(token, 0)
    return TokenLogprob(
        chosen=chosen, top=tuple(_alternative(other, rank) for rank, other in enumerate(ranked))
    )


def _alternative(token: int, rank: int) -> AlternativeToken:
    text = token_string(token)
    return AlternativeToken(token, text, -0.693147 * (rank + 1), text.encode())

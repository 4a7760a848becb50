"""Tokens to text, one at a time, without ever delivering half a character.

What all increments of an answer add up to is what the tokenizer's ``decode`` makes of all its
tokens at once, special tokens skipped. In detail:

- After a prompt that ends in ordinary text, the answer continues it: its text is what
  ``decode(prompt + answer)`` adds to ``decode(prompt)``. So a SentencePiece answer to
  ``The capital`` starts with a space. After a special token (as chat templates end) the answer
  starts a text of its own, which SentencePiece begins without one.
- Bytes that form no character become U+FFFD, as ``decode`` has it. Where such bytes follow a
  valid character in one run of SentencePiece byte tokens, ``decode`` would garble that
  character too; here it stays, because it was delivered already.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from soup_engine.engine.vocabulary import Vocabulary

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_UTF8_BYTES = 4
_new_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """State of one answer."""

    def push(self, token_id: int) -> str:
        """The text that is complete now and was not before; often empty."""
        ...

    def finish(self) -> str:
        """What is left: an unfinished character, as U+FFFD. Nothing may be pushed after."""
        ...


def start_detokenizer(vocabulary: Vocabulary, prompt_token_ids: Sequence[int]) -> Detokenizer:
    if vocabulary.byte_level:
        return ByteLevelDetokenizer(vocabulary, prompt_token_ids)
    return WindowDetokenizer(vocabulary, prompt_token_ids)


class ByteLevelDetokenizer:
    """For tokenizers whose tokens are strings of bytes: an incremental UTF-8 decoder.

    A prompt may end within a character (a caller may send token ids); the answer then begins
    with that character.
    """

    def __init__(self, vocabulary: Vocabulary, prompt_token_ids: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._decoder = _new_utf8_decoder(errors="replace")
        for token_id in prompt_token_ids[-_MAX_UTF8_BYTES:]:
            self.push(token_id)

    def push(self, token_id: int) -> str:
        if token_id in self._vocabulary.special_ids:
            return ""
        return self._decoder.decode(self._vocabulary.token_bytes(token_id))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For all other tokenizers: decodes the new token beside the one before it.

    A token's text may depend on what stands before (a space at the start of a text is dropped)
    but not on more than one token of it. Byte tokens of SentencePiece are put together here.
    """

    def __init__(self, vocabulary: Vocabulary, prompt_token_ids: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self._context: list[int] = []
        """The last token that was turned into text; empty at the start of a text."""
        self._held: list[int] = []
        """Tokens whose text, so far, ends in an unfinished character."""
        self._partial = bytearray()
        """The first bytes of a character."""
        self._broken = False
        """The present run of byte tokens is no valid UTF-8."""
        if prompt_token_ids and prompt_token_ids[-1] not in vocabulary.special_ids:
            self._context = [prompt_token_ids[-1]]

    def push(self, token_id: int) -> str:
        vocabulary = self._vocabulary
        if token_id in vocabulary.special_ids or vocabulary.piece(token_id) is None:
            return ""
        byte = vocabulary.fallback_byte(token_id)
        if byte is not None:
            text = self._release_held() + self._push_byte(byte)
            self._context = [token_id]
            return text
        self._held.append(token_id)
        may_wait = len(self._held) < _MAX_UTF8_BYTES
        return self._end_run() + self._release_held(unless_unfinished=may_wait)

    def finish(self) -> str:
        return self._end_run() + self._release_held()

    def _release_held(self, *, unless_unfinished: bool = False) -> str:
        if not self._held:
            return ""
        before = len(self._vocabulary.decode(self._context))
        text = self._vocabulary.decode(self._context + self._held)[before:]
        # Some slow tokenizers leave an unfinished character out.
        if unless_unfinished and (not text or text.endswith(_REPLACEMENT)):
            return ""
        self._context = self._held[-1:]
        self._held = []
        return text

    def _push_byte(self, byte: int) -> str:
        if self._broken:
            return _REPLACEMENT
        self._partial.append(byte)
        try:
            character = self._partial.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return ""
            self._broken = True
            character = _REPLACEMENT * len(self._partial)
        self._partial.clear()
        return character

    def _end_run(self) -> str:
        text = _REPLACEMENT * len(self._partial)
        self._partial.clear()
        self._broken = False
        return text

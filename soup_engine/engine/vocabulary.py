"""What each token id of a tokenizer stands for, in text and in bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, decoders

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FALLBACK_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Vocabulary:
    """Read-only view of a Hugging Face tokenizer, fast or slow.

    Attributes:
        special_ids: tokens that are no part of an answer's text.
        byte_level: every token is a string of bytes, and a text is no more than their
            concatenation (GPT-2's scheme, used by Llama 3, Qwen and others).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._backend: Tokenizer | None = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        self._bytes: dict[int, bytes] = {}
        self._fallback: dict[int, int | None] = {}
        if self._backend is None:
            self.special_ids = frozenset(tokenizer.all_special_ids)
            self.byte_level = False
        else:
            added = self._backend.get_added_tokens_decoder()
            self.special_ids = frozenset(i for i, token in added.items() if token.special)
            self.byte_level = isinstance(self._backend.decoder, decoders.ByteLevel)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of these tokens, special ones included."""
        if self._backend is not None:
            text: str = self._backend.decode(token_ids, skip_special_tokens=False)
        else:
            text = self._tokenizer.decode(
                token_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        return text

    def piece(self, token_id: int) -> str | None:
        """The tokenizer's own spelling; ``None`` for an id that it does not have, since models
        often have more rows in their embedding than their tokenizer has tokens."""
        if self._backend is not None:
            piece: str | None = self._backend.id_to_token(token_id)
        else:
            piece = self._tokenizer.convert_ids_to_tokens(token_id)
        return piece

    def fallback_byte(self, token_id: int) -> int | None:
        """The byte that a SentencePiece token like ``<0xE2>`` stands for, ``None`` for others."""
        try:
            return self._fallback[token_id]
        except KeyError:
            pass
        match = _FALLBACK_BYTE.fullmatch(self.piece(token_id) or "")
        # Without byte fallback in its decoder, such a token stands for its own spelling.
        is_byte = match is not None and self.decode([token_id]) != match.string
        byte = int(match[1], 16) if match is not None and is_byte else None
        self._fallback[token_id] = byte
        return byte

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text that it stands in the middle of, as UTF-8 bytes.

        They may be a part of a character. Special tokens are spelled out.
        """
        try:
            return self._bytes[token_id]
        except KeyError:
            value = self._bytes[token_id] = self._find_bytes(token_id)
            return value

    def _find_bytes(self, token_id: int) -> bytes:
        piece = self.piece(token_id)
        if piece is None:
            return b""
        if token_id in self.special_ids:
            return piece.encode()
        if self.byte_level:
            try:
                return bytes(_BYTE_OF_CHARACTER[character] for character in piece)
            except KeyError:  # an added token, spelled in plain text
                return piece.encode()
        byte = self.fallback_byte(token_id)
        if byte is not None:
            return bytes([byte])
        # The second of two: at the start of a text, decoders drop a space.
        return self.decode([token_id, token_id])[len(self.decode([token_id])) :].encode()


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 characters stand for themselves, the other
    bytes, in order, for the characters from U+0100 on (Radford et al., 2019)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(0x100 + place), byte) for place, byte in enumerate(others))
    return alphabet


_BYTE_OF_CHARACTER = _byte_level_alphabet()

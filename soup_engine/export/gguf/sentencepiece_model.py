"""Reads the pieces of a SentencePiece model file (``tokenizer.model``).

It is a protocol buffer: fields, each a key (number and wire type) and a value. Of the message
ModelProto only the pieces (field 1: text 1, score 2, type 3), the kind of model (trainer 2,
field 3) and whether a space is put before a text (normaliser 3, field 3) are of use here; numbers
are those of SentencePiece's ``sentencepiece_model.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from soup_engine.adapters.paths import open_regular
from soup_engine.errors import AdapterInvalidError, ExportSourceError

MAX_BYTES = 64 * 1024 * 1024
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
BPE = 2


class PieceType(IntEnum):
    """What a piece is; GGUF's token types have the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    text: bytes
    score: float
    type: PieceType


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """Attributes:
    pieces: in the order of their ids.
    is_bpe: pieces are joined by score; otherwise it is a unigram model.
    space_prefix: a text gets a space before it.
    """

    pieces: tuple[Piece, ...]
    is_bpe: bool
    space_prefix: bool


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """
    Raises:
        FileNotFoundError: nothing is there.
        ExportSourceError: it is no such file.
    """
    try:
        with open_regular(path) as file:
            return _model(memoryview(file.read(MAX_BYTES)))
    except (AdapterInvalidError, ValueError, IndexError, struct.error) as error:
        raise ExportSourceError(f"{path} is not a SentencePiece model: {error}.") from error


def _model(content: memoryview) -> SentencePieceModel:
    pieces, is_bpe, space_prefix = [], False, True
    for number, value in _fields(content):
        if number == 1 and isinstance(value, memoryview):
            pieces.append(_piece(value))
        elif number == 2 and isinstance(value, memoryview):
            is_bpe = any(field == (3, BPE) for field in _fields(value))
        elif number == 3 and isinstance(value, memoryview):
            space_prefix = all(field != (3, 0) for field in _fields(value))
    if not pieces:
        raise ValueError("it has no pieces")
    return SentencePieceModel(tuple(pieces), is_bpe, space_prefix)


def _piece(content: memoryview) -> Piece:
    text, score, kind = b"", 0.0, PieceType.NORMAL
    for number, value in _fields(content):
        if number == 1 and isinstance(value, memoryview):
            text = bytes(value)
        elif number == 2 and isinstance(value, memoryview):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = PieceType(value)
    return Piece(text, score, kind)


def _fields(content: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field; values of fixed size come as their bytes."""
    position = 0
    while position < len(content):
        key, position = _varint(content, position)
        number, kind = key >> 3, key & 7
        if kind == VARINT:
            value, position = _varint(content, position)
            yield number, value
            continue
        if kind == BYTES:
            length, position = _varint(content, position)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"it has a field of type {kind}")
        if position + length > len(content):
            raise ValueError("it ends too early")
        yield number, content[position : position + length]
        position += length


def _varint(content: memoryview, position: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and where it ends."""
    value = shift = 0
    while True:
        byte = content[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("it holds a number of more than 64 bits")

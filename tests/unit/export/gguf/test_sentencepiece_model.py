"""The pieces of a tokenizer.model, without SentencePiece."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from soup_engine.errors import ExportSourceError
from soup_engine.export.gguf.sentencepiece_model import Piece, PieceType, read_sentencepiece


def field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def piece(text: str, score: float, kind: int = 1) -> bytes:
    raw = text.encode()
    return field(1, field(1, raw) + b"\x15" + struct.pack("<f", score) + bytes([3 << 3, kind]))


BPE_TRAINER = field(2, bytes([3 << 3, 2]))


def test_pieces_and_settings(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    content = piece("<unk>", 0.0, 2) + piece("▁the", -1.5) + piece("<0x0A>", 0.0, 6)
    path.write_bytes(content + BPE_TRAINER + field(3, bytes([3 << 3, 0])))
    model = read_sentencepiece(path)
    assert model.pieces == (
        Piece(b"<unk>", 0.0, PieceType.UNKNOWN),
        Piece("▁the".encode(), -1.5, PieceType.NORMAL),
        Piece(b"<0x0A>", 0.0, PieceType.BYTE),
    )
    assert model.is_bpe and not model.space_prefix


def test_what_is_not_said_has_its_default(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(field(1, field(1, b"a")))
    model = read_sentencepiece(path)
    assert model.pieces == (Piece(b"a", 0.0, PieceType.NORMAL),)
    assert model.space_prefix and not model.is_bpe


@pytest.mark.parametrize(
    "content", [b"", b"\x0a", b"\x0a\x7fabc", b"\xff" * 20, b"not a model", b"\x0f\x01"]
)
def test_damaged_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(content)
    with pytest.raises(ExportSourceError, match="not a SentencePiece model"):
        read_sentencepiece(path)

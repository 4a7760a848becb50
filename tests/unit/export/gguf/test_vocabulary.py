"""Tokens, types, scores and special ids as GGUF wants them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import TokenType

from soup_engine.errors import ExportSourceError, ExportUnsupportedError
from soup_engine.export.gguf.vocabulary import Vocabulary, read_vocabulary

BYTE_LEVEL: dict[str, Any] = {
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "model": {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "ab": 2, "12": 3},
        "merges": [["a", "b"], "1 2"],
    },
    "added_tokens": [
        {"id": 4, "content": "<|end|>", "special": False},
        {"id": 5, "content": "<tool▁call>", "special": False},
        {"id": 6, "content": "<s>", "special": True},
    ],
}
SENTENCEPIECE: dict[str, Any] = {
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    },
    "model": {
        "type": "BPE",
        "byte_fallback": True,
        "unk_token": "<unk>",
        "vocab": {"<unk>": 0, "<0x0A>": 1, "ab": 2, "▁ab": 3, "a": 4, "b": 5, "▁": 6},
        "merges": ["a b", "▁ ab"],
    },
}


def read(
    folder: Path,
    tokenizer: dict[str, Any],
    *,
    size: int = 8,
    config: dict[str, Any] | None = None,
    **settings: Any,
) -> Vocabulary:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return read_vocabulary(folder, config or {}, size)


def test_byte_level(tmp_path: Path) -> None:
    found = read(tmp_path, BYTE_LEVEL)
    assert (found.model, found.pre, found.scores) == ("gpt2", "gpt-2", None)
    assert found.tokens[:4] == [b"a", b"b", b"ab", b"12"]
    # What looks like a control token is one; a user-defined one is found in the text as it is.
    assert found.tokens[4:] == [b"<|end|>", b"<tool call>", b"<s>", b"[PAD7]"]
    assert found.types[4:] == [
        TokenType.CONTROL,
        TokenType.USER_DEFINED,
        TokenType.CONTROL,
        TokenType.UNUSED,
    ]
    assert found.merges == ["a b", "1 2"]


def test_sentencepiece_without_its_model_file(tmp_path: Path) -> None:
    found = read(tmp_path, SENTENCEPIECE)
    assert (found.model, found.pre, found.space_prefix) == ("llama", "default", None)
    assert found.types[:4] == [
        TokenType.UNKNOWN,
        TokenType.BYTE,
        TokenType.NORMAL,
        TokenType.NORMAL,
    ]
    assert found.scores is not None
    assert found.scores[2] > found.scores[3] >= found.scores[4]
    assert read(tmp_path, {**SENTENCEPIECE, "normalizer": None}).space_prefix is False
    assert read(tmp_path, SENTENCEPIECE, add_prefix_space=True).space_prefix is True


def test_special_tokens(tmp_path: Path) -> None:
    start = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [start, text]}
    content = {**BYTE_LEVEL, "post_processor": template}
    named = {"bos_token": {"content": "<s>"}, "eos_token": "<|end|>", "pad_token": None}
    config = {"bos_token_id": 0, "eos_token_id": [4, 5], "pad_token_id": 7}
    special = read(tmp_path, content, config=config, **named).special
    assert special.ids == {"bos": 6, "eos": 4, "pad": 7}
    assert special.added == {"bos": True}
    stated = read(tmp_path, content, config=config, add_bos_token=False, **named).special
    assert stated.added == {"bos": False}
    plain = read(tmp_path, BYTE_LEVEL, config=config, add_eos_token=True).special
    assert plain.added == {"bos": False, "eos": True}
    assert plain.ids == {"bos": 0, "pad": 7}


def test_tokens_without_a_row(tmp_path: Path) -> None:
    found = read(tmp_path, BYTE_LEVEL, size=6)
    assert found.left_out == ("<s>",) and len(found.tokens) == 6
    with pytest.raises(ExportSourceError, match=r"'12' has id 3.*3 rows"):
        read(tmp_path, BYTE_LEVEL, size=3)


def test_other_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportUnsupportedError, match="Unigram"):
        read(tmp_path, {"model": {"type": "Unigram", "vocab": []}})
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ExportSourceError, match=r"neither tokenizer\.json"):
        read_vocabulary(tmp_path, {}, 8)

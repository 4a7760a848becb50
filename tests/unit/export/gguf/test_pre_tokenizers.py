"""A pre-tokenizer is named for what it does, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from soup_engine.errors import ExportUnsupportedError
from soup_engine.export.gguf.pre_tokenizers import never_joins_digits, recognise

BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
GPT2 = {**BYTES, "use_regex": True}
DIGITS = {"type": "Digits", "individual_digits": True}
LLAMA3 = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)
GPT4O = (
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)


def tokenizer(*steps: dict[str, Any], ignore_merges: bool = False) -> dict[str, Any]:
    pre = steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": list(steps)}
    model = {"vocab": {"a": 0, "12": 1}, "ignore_merges": ignore_merges}
    return {"pre_tokenizer": pre, "model": model}


def split(regex: str, behavior: str = "Isolated") -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": False}


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (tokenizer(GPT2), "gpt-2"),
        (tokenizer(DIGITS, GPT2), "smollm"),
        (tokenizer(split(LLAMA3), BYTES, ignore_merges=True), "llama-bpe"),
        (tokenizer(split(LLAMA3), BYTES), "dbrx"),
        (tokenizer(split(QWEN2), BYTES), "qwen2"),
        (tokenizer(split(TEKKEN), BYTES, ignore_merges=True), "tekken"),
        (tokenizer(split(GPT4O), BYTES), "gpt-4o"),
    ],
)
def test_known(content: dict[str, Any], name: str) -> None:
    assert recognise(content) == name


@pytest.mark.parametrize(
    "content",
    [
        tokenizer(BYTES),
        tokenizer({**GPT2, "add_prefix_space": True}),
        tokenizer(GPT2, ignore_merges=True),
        tokenizer({**DIGITS, "individual_digits": False}, GPT2),
        tokenizer(split(QWEN2), BYTES, ignore_merges=True),
        tokenizer(split(QWEN2 + "|x"), BYTES),
        tokenizer(split(QWEN2, "Removed"), BYTES),
        tokenizer(split(QWEN2), GPT2),
        {"pre_tokenizer": None, "model": {"vocab": {}}},
        tokenizer({"type": "Whitespace"}),
    ],
)
def test_anything_else_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(ExportUnsupportedError, match="no name"):
        recognise(content)


def test_a_vocabulary_without_numbers_of_two_digits_shows_that_digits_were_split() -> None:
    assert never_joins_digits(["1", "a", "Ġa", "Ġthe", "<tool_7 >"])
    assert not never_joins_digits(["1", "a", "12"])
    assert not never_joins_digits(["Ġ1"])
    # The two bytes of one numeral, ², are no join.
    assert never_joins_digits(["Â²"])
    assert not never_joins_digits(["Â²a"])

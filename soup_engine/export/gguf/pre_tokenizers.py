"""Recognises how a byte-level BPE tokenizer splits text before it merges.

llama.cpp does not read regular expressions from a file: it has a fixed number of them, under
names (``LLAMA_VOCAB_PRE_TYPE_*`` in its ``llama-vocab.cpp``), and each also fixes whether a word
that is a token as a whole skips the merges (``ignore_merges``). So a tokenizer is expressible
only if it does what one of the names does, and is refused otherwise.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from soup_engine.errors import ExportUnsupportedError

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_CASED = (_BEFORE + _UPPER + "*" + _LOWER + "+", _BEFORE + _UPPER + "+" + _LOWER + "*")
_CASED_PUNCTUATION = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"

_BY_REGEX: Mapping[tuple[str, bool], str] = {
    (_WORDS + r"|\p{N}{1,3}" + _PUNCTUATION + _END, True): "llama-bpe",
    (_WORDS + r"|\p{N}{1,3}" + _PUNCTUATION + _END, False): "dbrx",
    (_WORDS + r"|\p{N}" + _PUNCTUATION + _END, False): "qwen2",
    ("|".join(_CASED) + r"|\p{N}" + _CASED_PUNCTUATION + _END, True): "tekken",
    (
        "|".join(words + _CONTRACTIONS + "?" for words in _CASED)
        + r"|\p{N}{1,3}"
        + _CASED_PUNCTUATION
        + _END,
        False,
    ): "gpt-4o",
}
"""Names by the regular expression that isolates words, and by ``ignore_merges``."""

GPT2, SMOLLM = "gpt-2", "smollm"
"""GPT-2's own expression, alone and after every digit was split off."""


def recognise(tokenizer: Mapping[str, Any]) -> str:
    """The name in llama.cpp of a byte-level tokenizer's way to split text.

    Args:
        tokenizer: the content of ``tokenizer.json``.

    Raises:
        ExportUnsupportedError: llama.cpp has no name for it.
    """
    steps = _steps(tokenizer.get("pre_tokenizer"))
    name = _name(steps, tokenizer["model"])
    if name is None:
        described = ", ".join(str(step) for step in steps) or "nothing"
        raise ExportUnsupportedError(
            "llama.cpp has no name for the way in which this tokenizer splits text, and another "
            f"one would give other tokens; its pre-tokenizer is: {described[:600]}."
        )
    return name


def _name(steps: list[dict[str, Any]], model: Mapping[str, Any]) -> str | None:
    ignores_merges = bool(model.get("ignore_merges"))
    kinds = [step.get("type") for step in steps]
    if not steps or steps[-1].get("add_prefix_space"):
        return None
    own_regex = steps[-1].get("use_regex", True)
    if kinds == ["Split", "ByteLevel"] and not own_regex and _isolates(steps[0]):
        return _BY_REGEX.get((steps[0]["pattern"].get("Regex"), ignores_merges))
    if ignores_merges or not own_regex:
        return None
    if kinds == ["ByteLevel"]:
        return SMOLLM if never_joins_digits(model["vocab"]) else GPT2
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return SMOLLM
    return None


def never_joins_digits(vocabulary: Iterable[str]) -> bool:
    """Whether no token holds a digit beside anything else, as only happens where digits were
    split off when the vocabulary was made.

    transformers loses that step when it reads a tokenizer from a GGUF file.
    """
    to_byte = _byte_of_letter()
    for token in vocabulary:
        if len(token) == 1 or not all(letter in to_byte for letter in token):
            continue
        text = bytes(to_byte[letter] for letter in token).decode("utf-8", errors="ignore")
        if len(text) > 1 and any(unicodedata.category(letter)[0] == "N" for letter in text):
            return False
    return True


def _byte_of_letter() -> dict[str, int]:
    """The letters that byte-level BPE writes bytes as: printable ones of Latin-1 are themselves,
    the others follow from U+0100 on (Radford et al., 2019, ``bytes_to_unicode``)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


def _steps(pre_tokenizer: Any) -> list[dict[str, Any]]:
    if not isinstance(pre_tokenizer, dict):
        return []
    if pre_tokenizer.get("type") == "Sequence":
        return list(pre_tokenizer["pretokenizers"])
    return [pre_tokenizer]


def _isolates(step: Mapping[str, Any]) -> bool:
    return step.get("behavior") == "Isolated" and not step.get("invert")

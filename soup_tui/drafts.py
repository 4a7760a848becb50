"""Drafts in words."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

METHODS: Mapping[str, str] = MappingProxyType(
    {"ngram": "by what the text repeats", "draft_model": "by a draft model", "off": "off"}
)


def drafts_sentence(method: str, num_tokens: int) -> str:
    """What was switched to."""
    if method == "off":
        return "Nothing is drafted any more."
    return f"At most {num_tokens} tokens a step are drafted {METHODS.get(method, f'by {method}')}."

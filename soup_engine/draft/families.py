"""Which small model drafts for which family of large ones, where nobody distilled a draft.

The members of a family share a tokenizer, but for Llama 4, DeepSeek and Mistral Large: there the
draft works through text, which the engine does and says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MIN_SIZE_RATIO = 4
"""A draft that is not smaller than its target by this costs too much to gain anything."""


@dataclass(frozen=True, slots=True)
class Family:
    """Models whose name matches ``pattern``, and the hub id and size of a draft for them."""

    pattern: str
    draft: str
    num_parameters: int


FAMILIES = (
    Family(r"llama[-_ ]?3[._]?[13]\b", "meta-llama/Llama-3.2-1B-Instruct", 1_240_000_000),
    Family(r"llama[-_ ]?4\b", "meta-llama/Llama-3.2-1B-Instruct", 1_240_000_000),
    Family(r"qwen[-_ ]?2[._]?5\b", "Qwen/Qwen2.5-0.5B-Instruct", 490_000_000),
    Family(r"qwen[-_ ]?3\b", "Qwen/Qwen3-0.6B", 600_000_000),
    Family(r"mistral[-_ ]?large\b", "mistralai/Mistral-7B-Instruct-v0.3", 7_250_000_000),
    Family(r"mixtral\b", "mistralai/Mistral-7B-Instruct-v0.2", 7_240_000_000),
    Family(
        r"deepseek[-_ ]?(v3|r1)\b",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        1_780_000_000,
    ),
    Family(r"gemma[-_ ]?2\b", "google/gemma-2-2b-it", 2_610_000_000),
    Family(r"gemma[-_ ]?3\b", "google/gemma-3-270m-it", 270_000_000),
)


def family_draft(name: str, num_parameters: int) -> str | None:
    """Hub id of a draft for the model of this name (a path or hub id); ``None`` where the family
    is not known, or the model is too small to gain from a draft."""
    last = name.rstrip("/\\").replace("\\", "/").rpartition("/")[2].lower()
    for family in FAMILIES:
        if re.search(family.pattern, last):
            large = num_parameters >= MIN_SIZE_RATIO * family.num_parameters
            return family.draft if large else None
    return None

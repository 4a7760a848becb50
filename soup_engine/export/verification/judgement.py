"""Whether a result is good enough to have its name. No numpy here: the parent decides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def judge(figures: Mapping[str, Any], max_kl: float) -> str | None:
    """Why the result does not pass, as a sentence, or ``None`` when it does.

    Args:
        figures: as ``verify`` gives them.
        max_kl: highest mean KL divergence from the source, in nats.
    """
    mean_kl = figures["mean_kl"]
    if mean_kl is None or not math.isfinite(mean_kl):
        return "The result gives no probabilities to compare with those of its source."
    if mean_kl > max_kl:
        return (
            f"The result answers too differently from its source: its mean KL divergence is "
            f"{mean_kl:.4g} and may be {max_kl:g}."
        )
    misread = figures.get("tokenizer_differences", 0)
    if misread:
        return f"The result splits {misread} of the texts into other tokens than its source."
    return None

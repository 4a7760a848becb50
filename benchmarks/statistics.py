"""Percentiles, and ratios of figures that were taken in turns."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def percentile(samples: Sequence[float], percent: float) -> float | None:
    """The given percentile, interpolated between the two nearest samples; ``None`` of none.

    Rank ``(n - 1) * percent / 100`` counted from 0, which is the usual default of numerical
    packages (type 7 of Hyndman and Fan, 1996).
    """
    if not 0 <= percent <= 100:
        raise ValueError(f"a percentile lies between 0 and 100, not at {percent}")
    if not samples:
        return None
    ordered = sorted(samples)
    rank = (len(ordered) - 1) * percent / 100
    below = math.floor(rank)
    above = math.ceil(rank)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


def median(samples: Sequence[float | None]) -> float | None:
    """The median of the samples that there are; ``None`` when there are none."""
    present = [sample for sample in samples if sample is not None]
    return statistics.median(present) if present else None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A figure of one server over that of another, with its spread over the rounds.

    Attributes:
        value: median of the one over median of the other.
        low, high: least and greatest ratio within one round.
    """

    value: float
    low: float
    high: float


def ratio_of_medians(ours: Sequence[float | None], theirs: Sequence[float | None]) -> Ratio | None:
    """The ratio of two figures measured once a round each, in the same order of rounds.

    Rounds in which either is missing or theirs is not above 0 do not count; ``None`` when
    no round is left.
    """
    pairs = [
        (our, their)
        for our, their in zip(ours, theirs, strict=True)
        if our is not None and their is not None and their > 0
    ]
    if not pairs:
        return None
    by_round = [our / their for our, their in pairs]
    value = statistics.median(our for our, _ in pairs) / statistics.median(
        their for _, their in pairs
    )
    return Ratio(value=value, low=min(by_round), high=max(by_round))

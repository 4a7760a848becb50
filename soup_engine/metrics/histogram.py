"""Two histograms of bounded size: one for percentiles, one for Prometheus.

``LogHistogram`` has logarithmic buckets in the manner of DDSketch (Masson, Rim and Lee, 2019):
with g = (1 + a) / (1 - a), any value in [g^(i-1), g^i) is within the relative error a of
2 g^i / (g + 1). It can be merged and unmerged without loss, which averages of percentiles
cannot. ``BucketHistogram`` counts with bounds given from outside.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from soup_engine.metrics.snapshot import CumulativeHistogram, Percentiles

LOWEST_S = 1e-6
"""Durations below are counted as this one."""
HIGHEST_S = 86_400.0
"""Durations above are counted as this one."""

# The promise is 2 %; the rest is room for the rounding of the logarithm at a bucket's edge.
_ALPHA = 0.0195
_GAMMA = (1 + _ALPHA) / (1 - _ALPHA)
_SCALE = 1 / math.log(_GAMMA)
_LAST = math.ceil(math.log(HIGHEST_S / LOWEST_S) * _SCALE) + 1
_NS_PER_S = 1_000_000_000

NUM_BUCKETS = _LAST + 1

_ESTIMATES = (
    LOWEST_S,
    *(LOWEST_S * 2 * _GAMMA**index / (_GAMMA + 1) for index in range(1, NUM_BUCKETS - 1)),
    HIGHEST_S,
)
"""The duration, by bucket, that is within the error of all durations in it."""


def nearest_rank(quantile: float, count: int) -> int:
    """Rank, from 1, of the smallest of ``count`` sorted values that at least the share
    ``quantile`` of them does not exceed."""
    # Without the allowance 0.07 * 100, which is a little above 7 in binary, would be rank 8.
    return max(1, math.ceil(quantile * count - 1e-9))


class LogHistogram:
    """Durations in seconds, with percentiles of at most 2 % relative error.

    Recording is O(1). Only buckets that hold something take memory, at most ``NUM_BUCKETS``.
    Durations below ``LOWEST_S`` (negative ones too) and above ``HIGHEST_S`` are counted at these
    ends. The sum is kept in whole nanoseconds, so that unmerging leaves no rounding behind.
    """

    __slots__ = ("_counts", "_total_ns", "count")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._total_ns = 0
        self.count = 0

    @property
    def total(self) -> float:
        """Sum of all durations, in seconds."""
        return self._total_ns / _NS_PER_S

    @property
    def mean(self) -> float | None:
        return self.total / self.count if self.count else None

    def record(self, seconds: float) -> None:
        if seconds <= LOWEST_S:
            index = 0
        elif seconds >= HIGHEST_S:
            index = _LAST
        else:
            index = int(math.log(seconds / LOWEST_S) * _SCALE) + 1
        counts = self._counts
        counts[index] = counts.get(index, 0) + 1
        self.count += 1
        self._total_ns += int(seconds * _NS_PER_S)

    def merge(self, other: LogHistogram) -> None:
        """Add what ``other`` counted."""
        counts = self._counts
        for index, number in other._counts.items():
            counts[index] = counts.get(index, 0) + number
        self.count += other.count
        self._total_ns += other._total_ns

    def unmerge(self, other: LogHistogram) -> None:
        """Take back what was merged before."""
        counts = self._counts
        for index, number in other._counts.items():
            left = counts[index] - number
            assert left >= 0, "only what was merged can be unmerged"
            if left:
                counts[index] = left
            else:
                del counts[index]
        self.count -= other.count
        self._total_ns -= other._total_ns

    def clear(self) -> None:
        self._counts.clear()
        self.count = 0
        self._total_ns = 0

    def percentile(self, quantile: float) -> float | None:
        """Nearest-rank percentile in seconds, ``quantile`` in [0, 1]; ``None`` when empty."""
        return self.percentiles((quantile,))[0]

    def percentiles(self, quantiles: Sequence[float]) -> list[float | None]:
        if not self.count:
            return [None] * len(quantiles)
        indices = sorted(self._counts)
        cumulative = list(accumulate(map(self._counts.__getitem__, indices)))
        ranks = (nearest_rank(quantile, self.count) for quantile in quantiles)
        return [_ESTIMATES[indices[bisect_left(cumulative, rank)]] for rank in ranks]

    def summary(self) -> Percentiles:
        p50, p95, p99 = self.percentiles((0.50, 0.95, 0.99))
        return Percentiles(samples=self.count, p50=p50, p95=p95, p99=p99, mean=self.mean)


class BucketHistogram:
    """Counts of observations that are at most each of ``bounds`` (rising), since the start."""

    __slots__ = ("_bounds", "_counts", "_frozen", "_limit", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0
        self._limit = math.inf
        self._frozen: CumulativeHistogram | None = None

    def record(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value
        self._frozen = None

    def cumulative(self, limit: float = math.inf) -> CumulativeHistogram:
        """The counts as Prometheus has them, with the bounds that are at most ``limit``."""
        if self._frozen is None or self._limit != limit:
            bounds = tuple(bound for bound in self._bounds if bound <= limit)
            counts = tuple(accumulate(self._counts))
            self._limit = limit
            self._frozen = CumulativeHistogram(
                bounds=bounds, counts=counts[: len(bounds)], count=counts[-1], total=self._total
            )
        return self._frozen

from __future__ import annotations

import math
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soup_engine.metrics.histogram import (
    HIGHEST_S,
    LOWEST_S,
    NUM_BUCKETS,
    BucketHistogram,
    LogHistogram,
    nearest_rank,
)

# As many values near 10 microseconds as near an hour.
durations = st.floats(math.log(1e-5), math.log(3600)).map(math.exp)
percents = st.fractions(0, 1, max_denominator=1000)


def filled(values: list[float]) -> LogHistogram:
    histogram = LogHistogram()
    for value in values:
        histogram.record(value)
    return histogram


@given(st.lists(durations, min_size=1, max_size=300), percents)
def test_percentiles_are_within_two_percent_of_the_sorted_data(
    values: list[float], quantile: Fraction
) -> None:
    exact = sorted(values)[max(1, math.ceil(quantile * len(values))) - 1]
    assert filled(values).percentile(float(quantile)) == pytest.approx(exact, rel=0.02, abs=0)


def test_every_magnitude_is_within_two_percent() -> None:
    value = LOWEST_S
    while value < HIGHEST_S:
        assert filled([value]).percentile(0.5) == pytest.approx(value, rel=0.02, abs=0)
        value *= 1.003


@given(st.lists(durations, max_size=100), st.lists(durations, max_size=100))
def test_merging_is_like_having_recorded_everything_and_can_be_undone(
    left: list[float], right: list[float]
) -> None:
    merged = filled(left)
    merged.merge(filled(right))
    assert merged.summary() == filled(left + right).summary()

    merged.unmerge(filled(left))
    assert merged.summary() == filled(right).summary()


def test_count_sum_and_mean() -> None:
    histogram = filled([0.1, 0.2, 0.6])
    assert histogram.count == 3
    assert histogram.total == pytest.approx(0.9, abs=3e-9)
    assert histogram.mean == pytest.approx(0.3, abs=1e-9)


def test_an_empty_histogram_has_no_percentiles() -> None:
    summary = LogHistogram().summary()
    assert summary.samples == 0
    assert summary.p50 is summary.p95 is summary.p99 is summary.mean is None

    cleared = filled([0.1, 2.0])
    cleared.clear()
    assert cleared.summary() == summary


def test_what_lies_outside_is_counted_at_the_ends() -> None:
    assert filled([0.0, -1e-9]).percentile(1.0) == LOWEST_S
    assert filled([10 * HIGHEST_S]).percentile(0.5) == HIGHEST_S


def test_memory_is_bounded_by_the_number_of_buckets() -> None:
    histogram = LogHistogram()
    for step in range(100_000):
        histogram.record(LOWEST_S * 1.0003**step)
    assert NUM_BUCKETS < 700
    assert len(histogram._counts) <= NUM_BUCKETS


@pytest.mark.parametrize(
    ("quantile", "count", "rank"),
    [(0.0, 5, 1), (0.5, 1, 1), (0.5, 2, 1), (0.5, 3, 2), (0.07, 100, 7), (0.95, 20, 19), (1, 9, 9)],
)
def test_nearest_rank(quantile: float, count: int, rank: int) -> None:
    assert nearest_rank(quantile, count) == rank


def test_recording_takes_about_a_microsecond() -> None:
    histogram = LogHistogram()

    def seconds_for_a_thousand() -> float:
        start = time.perf_counter()
        for _ in range(1000):
            histogram.record(0.031)
        return time.perf_counter() - start

    # The best of many runs, and a bound with room in it: other work may share the machine.
    assert min(seconds_for_a_thousand() for _ in range(50)) < 5e-3


def test_cumulative_counts_include_what_equals_a_bound() -> None:
    histogram = BucketHistogram((1.0, 2.0, 5.0))
    for value in (0.5, 1.0, 1.5, 5.0, 9.0):
        histogram.record(value)
    cumulative = histogram.cumulative()
    assert cumulative.bounds == (1.0, 2.0, 5.0)
    assert cumulative.counts == (2, 3, 4)
    assert cumulative.count == 5
    assert cumulative.total == 17.0


def test_cumulative_counts_can_be_cut_off_without_losing_observations() -> None:
    histogram = BucketHistogram((1.0, 2.0, 5.0))
    histogram.record(1.5)
    histogram.record(4.0)
    cut = histogram.cumulative(limit=2.0)
    assert (cut.bounds, cut.counts, cut.count) == ((1.0, 2.0), (0, 1), 2)
    assert histogram.cumulative().bounds == (1.0, 2.0, 5.0)


def test_cumulative_counts_are_frozen() -> None:
    histogram = BucketHistogram((1.0,))
    before = histogram.cumulative()
    histogram.record(0.5)
    assert before.count == 0
    assert histogram.cumulative().count == 1

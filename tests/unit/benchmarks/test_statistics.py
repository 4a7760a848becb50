import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.statistics import Ratio, median, percentile, ratio_of_medians

SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50)


def test_percentile_interpolates_between_neighbours() -> None:
    assert percentile([10, 20, 30, 40], 50) == 25
    assert percentile([40, 10, 30, 20], 95) == pytest.approx(38.5)
    assert percentile([7], 95) == 7


def test_percentile_of_nothing_is_none() -> None:
    assert percentile([], 50) is None


def test_percentile_outside_0_to_100_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        percentile([1], 101)


@given(SAMPLES)
def test_percentiles_agree_with_the_standard_library(samples: list[float]) -> None:
    assert percentile(samples, 50) == pytest.approx(statistics.median(samples))
    if len(samples) > 1:
        cuts = statistics.quantiles(samples, n=20, method="inclusive")
        assert percentile(samples, 95) == pytest.approx(cuts[18], abs=1e-6)


@given(SAMPLES, st.floats(0, 100), st.floats(0, 100))
def test_percentiles_rise_with_the_rank(samples: list[float], one: float, other: float) -> None:
    low = percentile(samples, min(one, other))
    high = percentile(samples, max(one, other))
    assert low is not None and high is not None
    assert min(samples) <= low <= high + 1e-6 and high <= max(samples)


def test_median_leaves_missing_samples_out() -> None:
    assert median([None, 3.0, 1.0]) == 2.0
    assert median([None]) is None


def test_ratio_is_of_medians_and_its_spread_of_rounds() -> None:
    assert ratio_of_medians([10, 12, 50], [10, 10, 20]) == Ratio(value=1.2, low=1.0, high=2.5)


def test_rounds_without_both_figures_do_not_count() -> None:
    assert ratio_of_medians([10, None, 30], [5, 5, None]) == Ratio(value=2, low=2, high=2)
    assert ratio_of_medians([1.0], [0.0]) is None
    with pytest.raises(ValueError, match="zip"):
        ratio_of_medians([1.0], [1.0, 2.0])

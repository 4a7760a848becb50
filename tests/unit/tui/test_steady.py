from __future__ import annotations

from soup_tui.steady import Steady


def test_noise_is_not_followed_and_a_change_is() -> None:
    steady = Steady(0.02)
    seen = [steady.of(value) for value in (100.0, 101.0, 99.0, 98.5, 102.5, 101.0, 60.0)]
    assert seen == [100.0, 100.0, 100.0, 100.0, 102.5, 102.5, 60.0]


def test_a_slow_drift_is_followed_in_the_end() -> None:
    steady = Steady(0.02)
    seen = [steady.of(100.0 + step / 2) for step in range(20)]
    assert seen[-1] > 107.0
    assert len(set(seen)) < 6


def test_near_nothing_the_least_counts() -> None:
    steady = Steady(0.0, least=0.02)
    assert [steady.of(value) for value in (0.0, 0.01, 0.02, 0.03)] == [0.0, 0.0, 0.0, 0.03]

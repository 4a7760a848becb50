from __future__ import annotations

import pytest

from soup_engine.export.rate import WINDOW_S, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rate_and_time_left_follow_the_last_seconds() -> None:
    clock = Clock()
    pace = Pace(clock)
    assert pace.stage("writing").stage == "writing"
    progress = pace.total(10, 1_000)
    assert (progress.bytes_total, progress.bytes_per_s, progress.seconds_left) == (
        1_000,
        None,
        None,
    )
    clock.now += 1
    progress = pace.reached(1, 100)
    assert (progress.bytes_per_s, progress.seconds_left) == (100, 9)
    # It gets slower: what was seen long ago no longer counts.
    for second in range(1, 21):
        clock.now += 1
        progress = pace.reached(2, 100 + 10 * second)
    assert progress.bytes_per_s == pytest.approx(10)
    assert progress.seconds_left == pytest.approx(70)
    assert WINDOW_S < 20
    fresh = pace.stage("hashing")
    assert (fresh.bytes_done, fresh.bytes_total, fresh.bytes_per_s) == (0, 0, None)


def test_no_rate_out_of_nothing() -> None:
    clock = Clock()
    pace = Pace(clock)
    pace.stage("answers")
    pace.total(4, 0)
    progress = pace.reached(1, 0)
    clock.now += 1
    assert pace.reached(2, 0).bytes_per_s is None
    assert progress.seconds_left is None

from __future__ import annotations

import pytest

from soup_engine.metrics.throughput import SLOT_S, WINDOW_S, Throughput


def test_there_is_no_rate_before_the_first_step() -> None:
    assert Throughput().rates(100.0) == (0.0, 0.0)


def test_a_young_engine_is_measured_since_its_first_step_began() -> None:
    throughput = Throughput()
    throughput.record(100.5, 0.5, 30, 10)
    assert throughput.rates(102.0) == (15.0, 5.0)


def test_steady_steps_give_their_rate() -> None:
    throughput = Throughput()
    now = 100.0
    for _ in range(1000):
        now += 0.04
        throughput.record(now, 0.04, 2, 8)
    prompt, generation = throughput.rates(now)
    assert prompt == pytest.approx(50, rel=0.02)
    assert generation == pytest.approx(200, rel=0.02)


def test_the_rate_falls_to_nothing_after_the_window() -> None:
    throughput = Throughput()
    throughput.record(100.0, 0.1, 5, 100)
    busy = throughput.rates(105.0)[1]
    assert busy == pytest.approx(100 / 5.1)
    assert throughput.rates(100.0 + WINDOW_S + SLOT_S) == (0.0, 0.0)


def test_a_step_without_duration_gives_no_rate_yet() -> None:
    throughput = Throughput()
    throughput.record(100.0, 0.0, 1, 1)
    assert throughput.rates(100.0) == (0.0, 0.0)

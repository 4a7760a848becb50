from __future__ import annotations

import math

import pytest

from soup_engine.draft.step_times import FIRST_TOKENS, MAX_AGE, UNKNOWN_PRICE, StepTimes, level


def record_assisted(times: StepTimes, num_rows: int, num_drafted: int, seconds: float) -> None:
    """A step of a size that came before."""
    times.record_assisted(num_rows, num_drafted, 99.0)
    times.record_assisted(num_rows, num_drafted, seconds)


def test_levels_are_the_next_not_below() -> None:
    assert [level(n) for n in (0, 1, 6, 7, 8, 11, 13, 150)] == [0, 1, 6, 8, 8, 12, 16, 160]
    assert level(10_000) == 256


def test_before_anything_is_known_a_few_tokens_are_cheap() -> None:
    times = StepTimes()
    assert times.plain_s(1) is None
    assert times.added(4, 0) == 0.0
    assert times.added(4, FIRST_TOKENS) == UNKNOWN_PRICE * FIRST_TOKENS
    assert times.added(4, FIRST_TOKENS + 1) == math.inf


def test_prices_are_ratios_to_plain_steps_of_the_same_rows() -> None:
    times = StepTimes()
    times.record_plain(2, 0.1)
    record_assisted(times, 2, 4, 0.15)
    record_assisted(times, 2, 8, 0.2)
    assert times.added(2, 4) == pytest.approx(0.5)
    assert times.added(2, 2) == pytest.approx(0.25)
    assert times.added(2, 6) == pytest.approx(0.75)
    assert times.added(2, 16) == pytest.approx(1.5)
    assert times.added(3, 4) == pytest.approx(0.5)  # nothing nearer is known


def test_without_a_plain_step_of_these_rows_nothing_is_learned() -> None:
    times = StepTimes()
    times.record_plain(1, 0.1)
    record_assisted(times, 2, 4, 0.5)
    assert times.added(2, 4) == UNKNOWN_PRICE * 4


def test_one_pause_moves_little_and_a_lasting_change_gets_through() -> None:
    times = StepTimes()
    for _ in range(20):
        times.record_plain(1, 0.1)
    times.record_plain(1, 50.0)
    assert times.plain_s(1) == pytest.approx(0.12)
    for _ in range(60):
        times.record_plain(1, 0.4)
    assert times.plain_s(1) == pytest.approx(0.4, rel=0.01)


def test_drafts_are_never_worth_less_than_nothing() -> None:
    times = StepTimes()
    times.record_plain(1, 0.1)
    record_assisted(times, 1, 2, 0.05)
    assert times.added(1, 2) == 0.0


def test_a_price_that_is_not_paid_again_is_forgotten() -> None:
    times = StepTimes()
    times.record_plain(1, 0.1)
    record_assisted(times, 1, 5, 10.0)
    for _ in range(MAX_AGE + 2):
        times.record_assisted(1, 1, 0.1)
    assert times.added(1, 5) == pytest.approx(0.0)


def test_passes_of_a_draft_model_by_rows() -> None:
    times = StepTimes()
    times.record_pass(1, 0.01)
    assert times.pass_cost(1) == 0.0  # in plain steps, of which none is known
    times.record_plain(1, 0.1)
    times.record_plain(16, 0.2)
    assert times.pass_cost(1) == pytest.approx(0.1)
    assert times.pass_cost(16) == pytest.approx(0.05)
    times.record_pass(16, 0.04)
    assert times.pass_cost(16) == pytest.approx(0.2)
    assert times.pass_cost(1) == pytest.approx(0.1)


def test_the_first_step_of_a_size_tells_nothing() -> None:
    times = StepTimes()
    times.record_plain(1, 0.1)
    times.record_assisted(1, 5, 3.0)
    assert times.added(1, 5) == UNKNOWN_PRICE * 5
    times.record_assisted(1, 5, 0.12)
    assert times.added(1, 5) == pytest.approx(0.2)

from __future__ import annotations

import random

import pytest

from soup_engine.draft.acceptance import AcceptanceTally
from soup_engine.draft.break_even import (
    best_num_tokens,
    break_even_alpha,
    expected_tokens,
    modelled_speedup,
    reported_rate,
)


def test_expected_tokens_are_those_of_the_paper() -> None:
    assert expected_tokens(0.0, 5) == 1.0
    assert expected_tokens(1.0, 5) == 6.0
    assert expected_tokens(0.8, 5) == pytest.approx(1 + 0.8 + 0.64 + 0.512 + 0.4096 + 0.32768)


def test_the_reported_rate_is_not_alpha() -> None:
    assert reported_rate(0.8, 5) == pytest.approx(0.54, abs=0.005)
    assert reported_rate(0.8, 1) == pytest.approx(0.8)


def test_simulated_drafts_come_to_the_formulas() -> None:
    rng = random.Random(7)
    tally = AcceptanceTally()
    for _ in range(50_000):
        accepted = 0
        while accepted < 5 and rng.random() < 0.8:
            accepted += 1
        tally.record(5, accepted, rejected=accepted < 5)
    counts = tally.counts()
    assert counts.alpha == pytest.approx(0.8, abs=0.01)
    assert counts.acceptance_rate == pytest.approx(reported_rate(0.8, 5), abs=0.01)
    assert counts.mean_acceptance_length == pytest.approx(expected_tokens(0.8, 5), rel=0.01)


def test_speedup_pays_for_drafting_and_verifying() -> None:
    free = modelled_speedup(0.8, 5, c=0.0, v=1.0)
    assert free == pytest.approx(expected_tokens(0.8, 5))
    assert modelled_speedup(0.8, 5, c=0.1, v=1.5) == pytest.approx(free / 2.0)
    assert modelled_speedup(0.5, 0, c=0.3, v=1.0) == 1.0


def test_the_best_number_of_tokens() -> None:
    assert best_num_tokens(0.0, c=0.1, v=lambda _k: 1.0, largest=8) == (0, 1.0)
    k, speedup = best_num_tokens(1.0, c=0.0, v=lambda _k: 1.0, largest=8)
    assert (k, speedup) == (8, 9.0)
    k, speedup = best_num_tokens(0.7, c=0.1, v=lambda k: 1.0 + 0.05 * k, largest=8)
    others = [modelled_speedup(0.7, n, c=0.1, v=1.0 + 0.05 * n) for n in range(1, 9)]
    assert speedup == max(others) == others[k - 1]
    assert 1 < k < 8


def test_break_even() -> None:
    alpha = break_even_alpha(4, c=0.1, v=1.2)
    assert alpha is not None
    assert modelled_speedup(alpha, 4, c=0.1, v=1.2) == pytest.approx(1.0, abs=1e-4)
    assert break_even_alpha(2, c=1.0, v=1.5) is None
    assert break_even_alpha(3, c=0.0, v=1.0) == pytest.approx(0.0, abs=1e-5)

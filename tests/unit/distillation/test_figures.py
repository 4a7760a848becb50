from __future__ import annotations

import pytest

from soup_engine.distillation.figures import (
    DraftCosts,
    PairRecord,
    Spread,
    merged,
    most_promising,
)
from soup_engine.messages import DraftCounts

COSTS = DraftCosts(plain_step_s=0.03, draft_token=0.25, verify={1: 1.0, 2: 1.1, 4: 1.3})


def record(plain: list[float], assisted: list[float], costs: DraftCosts | None) -> PairRecord:
    # Ten drafts of two tokens: 3 rejected at once, 2 after one token, 5 accepted whole.
    counts = DraftCounts(lengths=(0, 0, 10), histogram=(3, 2, 5), rejected=5)
    return PairRecord(
        None, 2, costs=costs, agreement=0.7, counts=counts, plain=plain, assisted=assisted
    )


def test_acceptance_by_each_definition() -> None:
    figures = record([10.0], [12.0], COSTS).figures()
    assert figures.alpha == pytest.approx(12 / 17)
    assert figures.acceptance_rate == pytest.approx(12 / 20)
    assert figures.mean_acceptance_length == pytest.approx(1 + 12 / 10)
    assert figures.by_position == (0.7, 0.5)
    alpha = 12 / 17
    assert figures.expected_rate == pytest.approx((alpha + alpha**2) / 2)
    assert figures.modelled_speedup == pytest.approx((1 + alpha + alpha**2) / (0.5 + 1.1))
    # (1 + a + a²) / 1.6 = 1
    assert figures.break_even_alpha == pytest.approx(0.42195, abs=1e-4)
    assert figures.best_num_tokens == most_promising(COSTS, alpha)


def test_rounds_are_compared_each_with_its_own() -> None:
    figures = record([10.0, 20.0, 40.0], [11.0, 24.0, 38.0], COSTS).figures()
    assert figures.plain == Spread(20.0, 10.0, 40.0, 3)
    assert figures.speedup is not None
    assert figures.speedup.median == pytest.approx(1.1)
    assert (figures.speedup.low, figures.speedup.high) == pytest.approx((0.95, 1.2))
    assert figures.verdict == (
        "Makes no clear difference: 1.10 times plain decoding (0.95 to 1.20) with 2 drafted"
        " tokens a step."
    )


def test_the_verdict_says_what_is_needed() -> None:
    assert record([10.0], [13.0], COSTS).figures().verdict == (
        "Pays off: 1.30 times plain decoding with 2 drafted tokens a step."
    )
    assert record([10.0], [8.0], COSTS).figures().verdict == (
        "Does not pay off: 0.80 times plain decoding with 2 drafted tokens a step; break-even"
        " acceptance 0.42, measured 0.71."
    )
    dear = DraftCosts(plain_step_s=0.03, draft_token=1.0, verify={2: 1.5})
    assert (
        record([10.0], [8.0], dear)
        .figures()
        .verdict.endswith("at what drafting and verifying cost here, no acceptance is enough.")
    )
    assert (
        record([10.0], [8.0], None)
        .figures()
        .verdict.endswith("break-even acceptance not known, measured 0.71.")
    )
    assert "before the first round" in PairRecord("x", 2).figures().verdict


def test_costs_between_measured_lengths() -> None:
    assert COSTS.v(3) == pytest.approx(1.2)
    assert COSTS.v(4) == 1.3
    assert DraftCosts(0.03, 0.1, {2: 1.1}).v(1) == 1.1
    assert most_promising(COSTS, 0.0) == 1
    assert most_promising(COSTS, 0.999) == 4


def test_counts_are_merged() -> None:
    one = DraftCounts(lengths=(0, 2), histogram=(1, 1), rejected=1)
    other = DraftCounts(lengths=(0, 0, 3), histogram=(0, 0, 3), rejected=0)
    assert merged([one, other, DraftCounts()]) == DraftCounts((0, 2, 3), (1, 1, 3), 1)
    assert merged([]) == DraftCounts()

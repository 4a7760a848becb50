from __future__ import annotations

import pytest

from soup_engine.draft.acceptance import AcceptanceTally
from soup_engine.messages import DraftCounts


def test_figures_of_a_few_drafts() -> None:
    tally = AcceptanceTally()
    tally.record(3, 3, rejected=False)
    tally.record(3, 1, rejected=True)
    tally.record(2, 0, rejected=True)
    tally.record(5, 2, rejected=False)  # the answer ended there
    counts = tally.counts()
    assert counts.drafts == 4
    assert counts.drafted == 13
    assert counts.accepted == 6
    assert counts.histogram == (1, 1, 1, 1, 0, 0)
    assert counts.drafted_by_position == (4, 4, 3, 1, 1)
    assert counts.accepted_by_position == (3, 2, 1, 0, 0)
    assert counts.acceptance_rate == 6 / 13
    assert counts.mean_acceptance_length == 1 + 6 / 4
    assert counts.alpha == 6 / 8


def test_nothing_counted_is_no_figure() -> None:
    counts = AcceptanceTally().counts()
    assert counts == DraftCounts()
    assert counts.drafted_by_position == counts.accepted_by_position == ()
    assert counts.acceptance_rate is counts.mean_acceptance_length is counts.alpha is None


def test_a_picture_stays_as_it_was() -> None:
    tally = AcceptanceTally()
    tally.record(1, 1, rejected=False)
    before = tally.counts()
    tally.record(1, 0, rejected=True)
    assert before.accepted == 1
    assert tally.counts().alpha == pytest.approx(0.5)

from __future__ import annotations

from time import perf_counter

import pytest

from benchmarks.adapters.history import History


def test_a_value_that_nobody_changes_is_the_only_one() -> None:
    history = History("old")
    assert history.present == "old"
    assert history.possible(0.0, perf_counter()) == ["old"]


def test_while_a_change_is_under_way_both_values_are_possible() -> None:
    history = History("old")
    before = perf_counter()
    with history.changing("new"):
        during = perf_counter()
        assert history.possible(during, perf_counter()) == ["new", "old"]
    after = perf_counter()
    assert history.present == "new"
    assert history.possible(before, before) == ["old"]
    assert history.possible(during, during) == ["new", "old"]
    assert history.possible(after, after) == ["new"]
    assert history.possible(before, after) == ["new", "old"]


def test_what_was_replaced_before_is_not_possible() -> None:
    history = History(1)
    for value in (2, 3):
        with history.changing(value):
            pass
    moment = perf_counter()
    assert history.possible(moment, moment) == [3]
    assert sorted(history.possible(0.0, moment)) == [1, 2, 3]


def test_a_change_that_fails_leaves_both_possible() -> None:
    history = History("old")
    with pytest.raises(OSError, match="refused"), history.changing("new"):
        raise OSError("refused")
    moment = perf_counter()
    assert history.possible(moment, moment) == ["new", "old"]

"""What the screens compute: history, why, objective."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pytest

from soup_engine.messages import FinishReason
from soup_engine.metrics.snapshot import CumulativeHistogram, EngineSnapshot, FinishedRequest
from soup_tui.history import PREEMPTION, SWAP, History
from soup_tui.keymap import Objective
from soup_tui.objective import ObjectiveWatch, kept
from soup_tui.why import split_of, splits_by_adapter
from soup_tui.widgets.histogram import Bins


def finished(e2e_s: float, **fields: Any) -> FinishedRequest:
    values: dict[str, Any] = {
        "request_id": f"r{e2e_s}",
        "adapter": None,
        "reason": FinishReason.STOP,
        "arrival_time": 100.0 - e2e_s,
        "queue_s": 0.1,
        "prefill_s": 0.2,
        "decode_s": e2e_s - 0.3,
        "e2e_s": e2e_s,
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "output_tokens": 11,
        "preemptions": 0,
    }
    return FinishedRequest(**(values | fields))


@pytest.fixture
def at(hand_set: Any) -> Any:
    """A snapshot at a time, with other figures."""

    def make(time: float, **figures: Any) -> EngineSnapshot:
        return dataclasses.replace(hand_set.figures, time=time, **figures)

    return make


def test_a_line_has_a_value_for_each_column_and_keeps_peaks(at: Any) -> None:
    history = History()
    for second in range(60):
        history.add(at(float(second), tokens_per_s=50.0 if second == 31 else 1.0), None)
    line = history.line(lambda one: one.tokens_per_s, 60, 6)
    assert line == [1.0, 1.0, 1.0, 50.0, 1.0, 1.0]
    assert len(history.line(lambda one: one.tokens_per_s, 60, 200)) == 200
    assert history.line(lambda one: one.tokens_per_s, 60, 0) == []


def test_what_was_not_seen_is_a_gap(at: Any) -> None:
    history = History()
    history.add(at(5.0), None)
    history.add(at(59.0, running=1), None)
    assert history.line(lambda _: 1.0, 60, 6) == [1.0, None, None, None, None, 1.0]


def test_while_nothing_happens_lines_move_on_in_steps(at: Any) -> None:
    history = History()

    def shown() -> list[float | None]:
        return history.line(lambda one: one.tokens_per_s or None, 60, 30)

    for second in range(30):
        history.add(at(float(second), tokens_per_s=9.0), None)
    after_traffic = shown()
    assert after_traffic[-1] == 9.0
    pictures = []
    for second in range(30, 90):
        history.add(at(float(second)), None)
        pictures.append(shown())
    changes = [n for n, (one, other) in enumerate(pairwise(pictures), start=31) if one != other]
    assert pictures[0] == after_traffic
    assert changes == [40, 60, 80]
    history.add(at(90.0), "poem")
    assert history.marks(60, 30) == {29: SWAP}, "and at once when something does"


def test_the_past_ends_after_a_quarter_of_an_hour_and_a_look_counts_once(at: Any) -> None:
    history = History()
    for time in (0.0, 0.0, 10.0, 905.0):
        history.add(at(time), None)
    assert [sample.time for sample in history.samples] == [10.0, 905.0]


def test_swaps_and_preemptions_are_marked_where_they_happened(at: Any) -> None:
    history = History()
    for second in range(60):
        counters = dataclasses.replace(at(0.0).counters, preemptions=int(second >= 20))
        history.add(
            at(float(second), counters=counters, running=1), "poem" if second >= 40 else None
        )
    marks = history.marks(60, 60)
    assert sorted(marks.items(), key=lambda mark: mark[0]) == [(21, PREEMPTION), (41, SWAP)]


def test_a_histogram_covers_the_window_only(at: Any) -> None:
    def seen(*counts: int) -> MappingProxyType[str, CumulativeHistogram]:
        bounds = (0.1, 0.2, 0.4)
        return MappingProxyType({"ttft": CumulativeHistogram(bounds, counts, counts[-1], 1.0)})

    history = History()
    history.add(at(0.0, histograms=seen(5, 5, 5)), None)
    history.add(at(100.0, histograms=seen(5, 7, 8)), None)
    assert history.histogram("ttft", 60) == Bins((0.1, 0.2, 0.4), (0.0, 2.0, 1.0))
    assert history.histogram("ttft", 900) == Bins((0.1, 0.2, 0.4), (5.0, 2.0, 1.0))
    assert history.histogram("none", 60) == Bins()


def test_the_p95_request_is_split_into_where_its_time_went() -> None:
    requests = [finished(1.0) for _ in range(18)] + [finished(5.3), finished(9.0)]
    split = split_of(requests, itl_p50_s=0.2)
    assert split is not None
    assert (split.samples, split.e2e_s, split.request_id) == (20, 5.3, "r5.3")
    assert dict(split.parts) == pytest.approx(
        {"queue": 0.1, "prefill": 0.2, "decode": 2.0, "stalls": 3.0}
    )
    assert split.largest == "stalls"
    assert split_of([], 0.2) is None


def test_a_request_that_never_ran_waited_all_its_time() -> None:
    split = split_of([finished(4.0, queue_s=4.0, prefill_s=None, decode_s=None)], None)
    assert split is not None
    assert (split.queue_s, split.decode_s, split.stalls_s) == (4.0, 0.0, 0.0)


def test_adapters_are_split_apart_the_slowest_first() -> None:
    splits = splits_by_adapter([finished(1.0), finished(2.0, adapter="poem")], None)
    assert [(split.adapter, split.e2e_s) for split in splits] == [("poem", 2.0), (None, 1.0)]


def test_the_objective_counts_requests_within_it(at: Any) -> None:
    snapshot = at(100.0, finished=tuple(finished(seconds) for seconds in (0.5, 1.0, 2.0, 4.0)))
    assert kept(Objective("e2e", 1.0), snapshot, History(), 60).share == 0.5
    assert kept(Objective("ttft", 0.31), snapshot, History(), 60).share == 1.0
    assert kept(Objective("e2e", 1.0), at(500.0), History(), 60).share is None


def test_for_itl_it_counts_in_buckets(at: Any) -> None:
    histogram = CumulativeHistogram((0.1, 0.2), (6, 10), 10, 1.0)
    history = History()
    history.add(at(1.0, histograms=MappingProxyType({"itl": histogram})), None)
    found = kept(Objective("itl", 0.15), at(1.0), history, 60)
    assert (found.share, found.samples) == (pytest.approx(0.8), 10)
    assert not found.kept and not found.missed


def test_an_alert_is_given_once_for_each_time_the_objective_comes_to_be_missed(at: Any) -> None:
    watch = ObjectiveWatch(Objective("e2e", 1.0, alert=True))
    slow = at(100.0, finished=tuple(finished(2.0) for _ in range(20)))
    quick = at(100.0, finished=tuple(finished(0.5) for _ in range(20)))
    assert watch.newly_missed(quick, History()) is None
    assert watch.newly_missed(slow, History()) == "Only 0% of requests have a E2E within 1.00 s."
    assert watch.newly_missed(slow, History()) is None
    assert watch.newly_missed(quick, History()) is None
    assert watch.newly_missed(slow, History()) is not None


def test_without_alerts_or_enough_requests_nothing_is_said(at: Any) -> None:
    slow = at(100.0, finished=tuple(finished(2.0) for _ in range(20)))
    assert ObjectiveWatch(Objective("e2e", 1.0)).newly_missed(slow, History()) is None
    few = at(100.0, finished=(finished(2.0),))
    watch = ObjectiveWatch(Objective("e2e", 1.0, alert=True))
    assert watch.newly_missed(few, History()) is None
    assert watch.newly_missed(None, History()) is None

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from soup_engine.metrics.histogram import LogHistogram
from soup_engine.metrics.snapshot import WINDOWS_S
from soup_engine.metrics.windows import SLOT_S, SlidingWindows

steps = st.lists(
    st.tuples(
        st.one_of(st.floats(0, 20), st.floats(20, 1200)),
        st.lists(st.floats(1e-5, 3600), max_size=4),
    ),
    min_size=1,
    max_size=40,
)


@given(steps)
def test_a_window_holds_its_length_and_at_most_a_slot_more(
    steps: list[tuple[float, list[float]]],
) -> None:
    windows = SlidingWindows()
    now = 5000.0
    dated: list[tuple[float, float]] = []
    for elapsed, values in steps:
        now += elapsed
        for value in values:
            windows.record(value)
            dated.append((now, value))
        windows.advance(now)

        for seconds in WINDOWS_S:
            summary = windows.summary(seconds)
            must = sum(1 for at, _ in dated if at >= now - seconds)
            may = sum(1 for at, _ in dated if at > now - seconds - SLOT_S)
            assert must <= summary.samples <= may

            expected = LogHistogram()
            for _, value in dated[len(dated) - summary.samples :]:
                expected.record(value)
            assert summary == expected.summary()


def test_percentiles_are_merged_and_not_averaged() -> None:
    windows = SlidingWindows()
    for _ in range(99):
        windows.record(0.01)
    windows.advance(0.0)
    windows.record(10.0)
    windows.advance(30.0)
    summary = windows.summary(60)
    assert summary.samples == 100
    assert summary.p50 is not None
    assert summary.p50 < 0.011
    assert summary.p99 is not None
    assert summary.p99 < 0.011


def test_a_window_that_emptied_has_no_percentiles() -> None:
    windows = SlidingWindows()
    windows.record(0.25)
    windows.advance(100.0)
    windows.advance(200.0)
    assert windows.summary(60).samples == 0
    assert windows.summary(60).p95 is None
    assert windows.summary(60).mean is None
    assert windows.summary(300).samples == 1
    windows.advance(2000.0)
    assert all(windows.summary(seconds).samples == 0 for seconds in WINDOWS_S)


def test_what_was_recorded_is_dated_by_the_next_advance() -> None:
    windows = SlidingWindows()
    windows.advance(0.0)
    windows.record(0.25)
    assert windows.summary(60).samples == 0
    windows.advance(10_000.0)
    assert windows.summary(60).samples == 1


def test_memory_is_flat_once_the_longest_window_is_full() -> None:
    windows = SlidingWindows()

    def run(start: int, stop: int) -> None:
        for second in range(start, stop):
            for step in range(4):
                windows.record(0.01 * (1 + (second * 7 + step * 13) % 50))
            windows.advance(float(second))

    tracemalloc.start()
    try:
        run(0, 1000)
        full, _ = tracemalloc.get_traced_memory()
        run(1000, 8000)
        later, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert later < full * 1.05

"""Percentiles over the last 1, 5 and 15 minutes, in memory that stays flat for ever."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from soup_engine.metrics.histogram import LogHistogram
from soup_engine.metrics.snapshot import WINDOWS_S, Percentiles

SLOT_S = 5
"""Seconds that one sub-histogram covers: the grain in which windows forget."""


class _Window:
    """Sum of the sub-histograms of one window; they are shared with the longer windows."""

    __slots__ = ("_members", "_merged", "_num_slots", "_summary")

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._members: deque[tuple[int, LogHistogram]] = deque()
        self._merged = LogHistogram()
        self._summary: Percentiles | None = None

    def open(self, slot: int, histogram: LogHistogram) -> None:
        self._members.append((slot, histogram))

    def merge(self, recent: LogHistogram) -> None:
        self._merged.merge(recent)
        self._summary = None

    def expire(self, slot: int) -> None:
        """Forget what lies more than the window behind the start of ``slot``."""
        while self._members and self._members[0][0] < slot - self._num_slots:
            self._merged.unmerge(self._members.popleft()[1])
            self._summary = None

    def summary(self) -> Percentiles:
        if self._summary is None:
            self._summary = self._merged.summary()
        return self._summary


class SlidingWindows:
    """Durations of one measure over several windows, kept up to date incrementally.

    ``record`` only notes a duration; ``advance`` dates everything noted since the last call and
    forgets what is too old. So recording needs no clock, and an engine dates a whole step at
    once. A window holds everything of its length and at most ``SLOT_S`` more.
    """

    def __init__(self, windows_s: Sequence[int] = WINDOWS_S) -> None:
        self._windows = {seconds: _Window(seconds // SLOT_S) for seconds in windows_s}
        self._undated = LogHistogram()
        self._slot: int | None = None
        self._open_slot: int | None = None
        self._open = LogHistogram()

    def record(self, seconds: float) -> None:
        self._undated.record(seconds)

    def advance(self, now: float) -> None:
        """Date what was recorded since the last call to ``now``, seconds of a monotonic clock."""
        slot = int(now // SLOT_S)
        if slot != self._slot:
            self._slot = slot
            for window in self._windows.values():
                window.expire(slot)
        if not self._undated.count:
            return
        if slot != self._open_slot:
            self._open_slot = slot
            self._open = LogHistogram()
            for window in self._windows.values():
                window.open(slot, self._open)
        self._open.merge(self._undated)
        for window in self._windows.values():
            window.merge(self._undated)
        self._undated.clear()

    def summary(self, window_s: int) -> Percentiles:
        """Percentiles of one window as of the last ``advance``."""
        return self._windows[window_s].summary()

"""What the application remembers of a service: a sample for each look, for a quarter of an hour."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from soup_engine.metrics.snapshot import (
    WINDOWS_S,
    CumulativeHistogram,
    EngineSnapshot,
    Percentiles,
)
from soup_tui.widgets.histogram import Bins

KEPT_S = max(WINDOWS_S)
SHORTEST_BIN_S = 2.0
"""Lines over time move on once in so many seconds at most: each move repaints them whole."""
IDLE_STEP_S = 20.0
"""While nothing happens they move on in such steps: what they show is only getting older."""
SWAP, PREEMPTION = "swap", "preemption"


@dataclass(frozen=True, slots=True)
class Sample:
    """One look.

    Attributes:
        latency: the percentiles over the last minute, by measure.
        eventful: something ran or waited, or another adapter was activated.
    """

    time: float
    latency: Mapping[str, Percentiles]
    tokens_per_s: float
    running: int
    waiting: int
    preemptions: int
    active: str | None
    histograms: Mapping[str, CumulativeHistogram]
    eventful: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at a time: ``SWAP`` or ``PREEMPTION``."""

    time: float
    kind: str


class History:
    """Samples in the order of time, those of the last ``KEPT_S`` seconds."""

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque()

    def add(self, snapshot: EngineSnapshot, active: str | None) -> None:
        """Remember a look; one that shows nothing newer is not counted twice."""
        before = self.samples[-1] if self.samples else None
        if before is not None and snapshot.time <= before.time:
            return
        busy = bool(snapshot.running or snapshot.waiting or snapshot.tokens_per_s)
        self.samples.append(
            Sample(
                time=snapshot.time,
                latency=snapshot.windows.get(WINDOWS_S[0], {}),
                tokens_per_s=snapshot.tokens_per_s,
                running=snapshot.running,
                waiting=snapshot.waiting,
                preemptions=snapshot.counters.preemptions,
                active=active,
                histograms=snapshot.histograms,
                eventful=busy or before is None or before.active != active,
            )
        )
        while self.samples[0].time < snapshot.time - KEPT_S:
            self.samples.popleft()

    def clear(self) -> None:
        self.samples.clear()

    def line(
        self, value: Callable[[Sample], float | None], window_s: int, columns: int
    ) -> list[float | None]:
        """``columns`` values over the last ``window_s`` seconds, the newest last.

        Time is cut into bins at fixed places, so that the line moves by whole bins; of several
        values in a bin the highest stays, since peaks matter.
        """
        if not self.samples or columns <= 0:
            return []
        bin_s = self._bin_s(window_s, columns)
        num_bins = max(1, round(window_s / bin_s))
        last = self._newest_bin(bin_s)
        bins: list[float | None] = [None] * num_bins
        for sample in self.samples:
            index = num_bins - 1 - (last - int(sample.time // bin_s))
            found = value(sample)
            if 0 <= index < num_bins and found is not None:
                highest = bins[index]
                bins[index] = found if highest is None else max(highest, found)
        return [bins[column * num_bins // columns] for column in range(columns)]

    def marks(self, window_s: int, columns: int) -> dict[int, str]:
        """What happened in the last ``window_s`` seconds, by column; a swap hides a preemption."""
        if not self.samples or columns <= 0:
            return {}
        bin_s = self._bin_s(window_s, columns)
        num_bins = max(1, round(window_s / bin_s))
        last = self._newest_bin(bin_s)
        found: dict[int, str] = {}
        for mark in self._all_marks():
            index = num_bins - 1 - (last - int(mark.time // bin_s))
            column = (index * columns + columns // 2) // num_bins
            if 0 <= index < num_bins and found.get(column) != SWAP:
                found[column] = mark.kind
        return found

    def _all_marks(self) -> list[Mark]:
        marks: list[Mark] = []
        for before, after in pairwise(self.samples):
            if after.preemptions > before.preemptions:
                marks.append(Mark(after.time, PREEMPTION))
            if after.active != before.active:
                marks.append(Mark(after.time, SWAP))
        return marks

    def _newest_bin(self, bin_s: float) -> int:
        """At the right end of what is shown."""
        eventful = next((one.time for one in reversed(self.samples) if one.eventful), 0.0)
        step = self.samples[-1].time // IDLE_STEP_S * IDLE_STEP_S
        return int(max(eventful, step) // bin_s)

    def _bin_s(self, window_s: int, columns: int) -> float:
        return max(SHORTEST_BIN_S, window_s / columns)

    def histogram(self, measure: str, window_s: int) -> Bins:
        """How the measure was spread over the last ``window_s`` seconds."""
        if not self.samples:
            return Bins()
        newest = self.samples[-1]
        now = newest.histograms.get(measure)
        if now is None:
            return Bins()
        start = newest.time - window_s
        before = next((sample for sample in reversed(self.samples) if sample.time <= start), None)
        earlier = None if before is None else before.histograms.get(measure)
        zeros = (0,) * len(now.counts)
        return Bins.between(now.bounds, zeros if earlier is None else earlier.counts, now.counts)

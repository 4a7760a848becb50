"""The latency objective (SLO): how many requests stay within it, and when that is too few."""

from __future__ import annotations

from dataclasses import dataclass

from soup_engine.metrics.snapshot import WINDOWS_S, EngineSnapshot, FinishedRequest
from soup_tui.formatting import duration
from soup_tui.history import History
from soup_tui.keymap import Objective
from soup_tui.why import finished_within
from soup_tui.widgets.histogram import Bins

WANTED_SHARE = 0.95
LEAST_SAMPLES = 20
"""Below so many nothing is called missed: one slow request would be 5 % of them."""


@dataclass(frozen=True, slots=True)
class Kept:
    """``share`` of ``samples`` was within the objective; ``None`` without samples."""

    share: float | None
    samples: int

    @property
    def kept(self) -> bool:
        return self.share is not None and self.share >= WANTED_SHARE

    @property
    def missed(self) -> bool:
        return (
            self.share is not None and self.samples >= LEAST_SAMPLES and self.share < WANTED_SHARE
        )


def kept(objective: Objective, snapshot: EngineSnapshot, history: History, window_s: int) -> Kept:
    """How the objective was kept over the last ``window_s`` seconds. TTFT and E2E are counted
    over the requests that the snapshot remembers, ITL over the buckets of its histogram."""
    if objective.measure == "itl":
        return _kept_bins(history.histogram("itl", window_s), objective.seconds)
    requests = finished_within(snapshot.finished, snapshot.time, window_s)
    times = [_ttft(one) if objective.measure == "ttft" else one.e2e_s for one in requests]
    known = [time for time in times if time is not None]
    if not known:
        return Kept(None, 0)
    return Kept(sum(time <= objective.seconds for time in known) / len(known), len(known))


def _ttft(request: FinishedRequest) -> float | None:
    if request.queue_s is None or request.prefill_s is None:
        return None
    return request.queue_s + request.prefill_s


def _kept_bins(bins: Bins, limit: float) -> Kept:
    """Values inside a bin are taken to be spread evenly."""
    total = sum(bins.counts)
    if not total:
        return Kept(None, 0)
    within, low = 0.0, 0.0
    for high, number in zip(bins.bounds, bins.counts, strict=True):
        if high <= limit:
            within += number
        elif low < limit:
            within += number * (limit - low) / (high - low)
        low = high
    return Kept(within / total, round(total))


class ObjectiveWatch:
    """The objective as the user has set it, and whether it was missed at the last look."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.window_s = WINDOWS_S[0]
        self._missed = False

    def newly_missed(self, snapshot: EngineSnapshot | None, history: History) -> str | None:
        """A sentence when alerts are on and the objective has just come to be missed."""
        if snapshot is None or not self.objective.alert:
            self._missed = False
            return None
        found = kept(self.objective, snapshot, history, self.window_s)
        before, self._missed = self._missed, found.missed
        if before or not found.missed or found.share is None:
            return None
        measure, limit = self.objective.measure.upper(), duration(self.objective.seconds)
        return f"Only {found.share:.0%} of requests have a {measure} within {limit}."

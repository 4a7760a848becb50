"""Drafts over time: what was drafted and accepted in each stretch of the last minutes."""

from __future__ import annotations

from collections import deque

from soup_engine.metrics.snapshot import SPECULATION_INTERVAL_S, SpeculationInterval

MAX_INTERVALS = 180
"""A quarter of an hour of them."""


class DraftIntervals:
    """The latest ones, oldest first."""

    def __init__(self) -> None:
        self._intervals: deque[SpeculationInterval] = deque(maxlen=MAX_INTERVALS)

    def add(self, now: float, *, drafts: int, drafted: int, accepted: int) -> None:
        start = now // SPECULATION_INTERVAL_S * SPECULATION_INTERVAL_S
        if self._intervals and self._intervals[-1].start == start:
            last = self._intervals.pop()
            drafts += last.drafts
            drafted += last.drafted
            accepted += last.accepted
        self._intervals.append(
            SpeculationInterval(start=start, drafts=drafts, drafted=drafted, accepted=accepted)
        )

    def view(self) -> tuple[SpeculationInterval, ...]:
        return tuple(self._intervals)

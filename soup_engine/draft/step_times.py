"""What decode steps take with drafts and without, as measured while serving."""

from __future__ import annotations

import math
from bisect import bisect_left, insort

WEIGHT = 0.2
"""Weight of the newest sample."""

OUTLIER = 2.0
"""A sample counts as at most this many times its mean: one pause moves the mean little."""

MAX_AGE = 1024
"""Steps after which a price that was not paid again is forgotten, so that one that was high by
accident gets another chance."""

UNKNOWN_PRICE = 0.02
FIRST_TOKENS = 8
"""What verifying one token is taken to cost, in plain steps, before anything is known: little, so
that it is tried, but not with more than so many tokens at first."""

_LEVELS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256)
"""Numbers of rows and of drafted tokens that are told apart."""


def level(number: int) -> int:
    """The smallest level that is not below ``number``, or the last."""
    return _LEVELS[min(bisect_left(_LEVELS, number), len(_LEVELS) - 1)]


class StepTimes:
    """Plain steps by their number of rows; what verification adds by rows and drafted tokens;
    passes of a draft model.

    What it adds is held in plain steps of the same rows, a ratio that longer contexts and busier
    machines move less than seconds.
    """

    def __init__(self) -> None:
        self._plain_s: dict[int, float] = {}  # by rows
        self._added: dict[int, dict[int, _Price]] = {}  # by level of rows, of drafted tokens
        self._drafted_levels: dict[int, list[int]] = {}  # known ones, ascending
        self._seen: set[tuple[int, int]] = set()
        self._pass_s: dict[int, float] = {}  # of a draft model, by level of rows
        self._steps = 0

    def record_pass(self, num_rows: int, seconds: float) -> None:
        """A forward pass of a draft model, in a step of so many rows."""
        place = level(num_rows)
        self._pass_s[place] = _blend(self._pass_s.get(place), seconds)

    def record_plain(self, num_rows: int, seconds: float) -> None:
        """A decode step without prefill and drafts."""
        self._plain_s[num_rows] = _blend(self._plain_s.get(num_rows), seconds)

    def record_assisted(self, num_rows: int, num_drafted: int, seconds: float) -> None:
        """A decode step without prefill that verified drafts. Nothing is learned before a plain
        step of so many rows was seen, nor from the first step of a size: matrix libraries prepare
        code for it, once."""
        plain_s = self._plain_s.get(num_rows)
        if plain_s is None:
            return
        self._steps += 1
        prices = self._added.setdefault(level(num_rows), {})
        known = self._drafted_levels.setdefault(level(num_rows), [])
        place = level(num_drafted)
        if (level(num_rows), place) not in self._seen:
            self._seen.add((level(num_rows), place))
            return
        price = prices.get(place)
        total = seconds / plain_s
        if price is None:
            prices[place] = _Price(total - 1.0, self._steps)
            insort(known, place)
        else:
            price.value = _blend(1.0 + price.value, total) - 1.0
            price.step = self._steps
        for other in [other for other in known if self._steps - prices[other].step > MAX_AGE]:
            known.remove(other)
            del prices[other]

    def plain_s(self, num_rows: int) -> float | None:
        """Seconds of a plain step; ``None`` where none with so many rows was measured."""
        return self._plain_s.get(num_rows)

    def pass_cost(self, num_rows: int) -> float:
        """One pass of a draft model, in plain steps of so many rows; 0 while nothing is known, so
        that it is tried."""
        plain_s = self._plain_s.get(num_rows)
        if not self._pass_s or not plain_s:
            return 0.0
        own = level(num_rows)
        nearest = min(self._pass_s, key=lambda rows: abs(rows - own))
        return self._pass_s[nearest] / plain_s

    def added(self, num_rows: int, num_drafted: int) -> float:
        """What verifying adds to a plain step of these rows, in such steps; never negative.

        Between what is known it is interpolated; beyond that it goes on at half the price, since
        part of what a few tokens cost is paid once. What is wrong about that, one step shows.
        """
        if num_drafted == 0:
            return 0.0
        rows = self._known_rows(num_rows)
        if rows is None:
            return UNKNOWN_PRICE * num_drafted if num_drafted <= FIRST_TOKENS else math.inf
        prices, known = self._added[rows], self._drafted_levels[rows]
        after = bisect_left(known, num_drafted)
        if after == len(known):
            last = known[-1]
            value = prices[last].value * (1.0 + 0.5 * (num_drafted - last) / last)
        else:
            high = known[after]
            low = known[after - 1] if after else 0
            low_value = prices[low].value if after else 0.0
            share = (num_drafted - low) / (high - low)
            value = low_value + share * (prices[high].value - low_value)
        return max(0.0, value)

    def _known_rows(self, num_rows: int) -> int | None:
        """The level of rows nearest to these that anything is known of."""
        own = level(num_rows)
        if self._drafted_levels.get(own):
            return own
        others = [rows for rows, known in self._drafted_levels.items() if known]
        return min(others, key=lambda rows: abs(rows - own)) if others else None


class _Price:
    """What is added by a level of drafted tokens, and when that was last measured."""

    __slots__ = ("step", "value")

    def __init__(self, value: float, step: int) -> None:
        self.value = value
        self.step = step


def _blend(mean: float | None, sample: float) -> float:
    if mean is None:
        return sample
    return mean + WEIGHT * (min(sample, OUTLIER * mean) - mean)

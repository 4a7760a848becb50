"""How many drafted tokens were accepted, counted so that every figure can be derived."""

from __future__ import annotations

from soup_engine.messages import DraftCounts


class AcceptanceTally:
    """Counts drafts; ``counts`` is the frozen picture of it."""

    __slots__ = ("_drafted", "_histogram", "_rejected")

    def __init__(self) -> None:
        self._drafted: list[int] = []
        self._histogram: list[int] = []
        self._rejected = 0

    def record(self, num_drafted: int, num_accepted: int, *, rejected: bool) -> None:
        """A draft was verified.

        Args:
            num_drafted: its tokens, at least one.
            num_accepted: those that became part of the answer.
            rejected: a drafted token was refused. A draft that is cut off by the end of the
                answer was not, though not all of it was used.
        """
        for counts in (self._drafted, self._histogram):
            counts.extend([0] * (num_drafted + 1 - len(counts)))
        self._drafted[num_drafted] += 1
        self._histogram[num_accepted] += 1
        self._rejected += rejected

    def counts(self) -> DraftCounts:
        return DraftCounts(
            lengths=tuple(self._drafted),
            histogram=tuple(self._histogram),
            rejected=self._rejected,
        )

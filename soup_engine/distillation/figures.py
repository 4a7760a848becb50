"""What was measured of a pair of target and draft, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import median

from soup_engine.draft.break_even import (
    best_num_tokens,
    break_even_alpha,
    modelled_speedup,
    reported_rate,
)
from soup_engine.messages import DraftCounts


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of the rounds' values."""

    median: float
    low: float
    high: float
    rounds: int

    @classmethod
    def over(cls, values: Rows[float]) -> Spread | None:
        if not values:
            return None
        return cls(median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """In plain decode steps with as many rows.

    Attributes:
        plain_step_s: seconds of one.
        draft_token: the c of ``draft.break_even``.
        verify: its v, by the number of drafted tokens, where it was measured.
    """

    plain_step_s: float
    draft_token: float
    verify: Mapping[int, float]

    @property
    def largest(self) -> int:
        """Most drafted tokens that v is known for."""
        return max(self.verify)

    def v(self, k: int) -> float:
        """Cost of verifying ``k`` tokens, 1 … ``largest``; between measured ones in proportion."""
        high = min(known for known in self.verify if known >= k)
        low = max((known for known in self.verify if known <= k), default=high)
        if low == high:
            return self.verify[high]
        share = (k - low) / (high - low)
        return self.verify[low] + share * (self.verify[high] - self.verify[low])

    def modelled(self, alpha: float, k: int) -> float:
        """Modelled speed-up with ``k`` drafted tokens."""
        return modelled_speedup(alpha, k, c=self.draft_token, v=self.v(k))


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFigures:
    """A pair, measured on answers of the base or of one adapter.

    Attributes:
        agreement: teacher-forced: share of the tokens of the target's greedy answers that are the
            draft's most likely ones. ``None`` where the draft has other tokens.
        alpha: per-token acceptance in the engine.
        acceptance_rate: accepted over drafted tokens, as engines report it; at ``alpha`` the
            formula expects ``expected_rate``.
        by_position: accepted at a position, over drafts.
        num_tokens: drafted for each step while throughput was measured.
        plain, assisted: tokens a second.
        speedup: assisted over plain, by round.
        modelled_speedup: at ``alpha`` and ``num_tokens``, by the costs.
        break_even_alpha: acceptance from which so many tokens pay off; ``None`` where none does.
        best_num_tokens: with the highest modelled speed-up, 0 where plain decoding is faster.
    """

    adapter: str | None
    agreement: float | None
    counts: DraftCounts
    alpha: float | None
    acceptance_rate: float | None
    expected_rate: float | None
    mean_acceptance_length: float | None
    by_position: tuple[float, ...]
    num_tokens: int
    plain: Spread | None
    assisted: Spread | None
    speedup: Spread | None
    costs: DraftCosts | None
    modelled_speedup: float | None
    break_even_alpha: float | None
    best_num_tokens: int | None
    best_modelled_speedup: float | None

    @property
    def verdict(self) -> str:
        """One sentence: whether the pair pays off here, and by how much."""
        if self.speedup is None:
            return "Not measured: it ended before the first round."
        ratio = f"{self.speedup.median:.2f} times plain decoding"
        if self.speedup.rounds > 1:
            ratio += f" ({self.speedup.low:.2f} to {self.speedup.high:.2f})"
        ratio += f" with {self.num_tokens} drafted {_tokens(self.num_tokens)} a step"
        if self.speedup.low > 1.0:
            return f"Pays off: {ratio}."
        if self.speedup.high >= 1.0:
            return f"Makes no clear difference: {ratio}."
        return f"Does not pay off: {ratio}; {self._what_it_needs()}."

    def _what_it_needs(self) -> str:
        measured = "nothing was drafted" if self.alpha is None else f"measured {self.alpha:.2f}"
        if self.costs is None or self.num_tokens > self.costs.largest:
            return f"break-even acceptance not known, {measured}"
        if self.break_even_alpha is None:
            return "at what drafting and verifying cost here, no acceptance is enough"
        return f"break-even acceptance {self.break_even_alpha:.2f}, {measured}"


@dataclass(slots=True)
class PairRecord:
    """What is known of a pair so far.

    Attributes:
        plain, assisted: tokens a second of the rounds that are complete.
    """

    adapter: str | None
    num_tokens: int
    costs: DraftCosts | None = None
    agreement: float | None = None
    counts: DraftCounts = field(default_factory=DraftCounts)
    plain: list[float] = field(default_factory=list)
    assisted: list[float] = field(default_factory=list)

    def figures(self) -> PairFigures:
        counts, costs, k = self.counts, self.costs, self.num_tokens
        alpha = counts.alpha
        modelled = break_even = best = None
        if costs is not None and k <= costs.largest:
            break_even = break_even_alpha(k, c=costs.draft_token, v=costs.v(k))
            if alpha is not None:
                modelled = costs.modelled(alpha, k)
                best = best_num_tokens(
                    alpha,
                    c=costs.draft_token,
                    v=costs.v,
                    largest=costs.largest,
                )
        ratios = [a / p for a, p in zip(self.assisted, self.plain, strict=True)]
        return PairFigures(
            adapter=self.adapter,
            agreement=self.agreement,
            counts=counts,
            alpha=alpha,
            acceptance_rate=counts.acceptance_rate,
            expected_rate=None if alpha is None else reported_rate(alpha, k),
            mean_acceptance_length=counts.mean_acceptance_length,
            by_position=tuple(count / counts.drafts for count in counts.accepted_by_position),
            num_tokens=k,
            plain=Spread.over(self.plain),
            assisted=Spread.over(self.assisted),
            speedup=Spread.over(ratios),
            costs=costs,
            modelled_speedup=modelled,
            break_even_alpha=break_even,
            best_num_tokens=None if best is None else best[0],
            best_modelled_speedup=None if best is None else best[1],
        )


def most_promising(costs: DraftCosts, alpha: float) -> int:
    """The number of drafted tokens with the highest modelled speed-up, though that be below 1."""
    return max(range(1, costs.largest + 1), key=lambda k: costs.modelled(alpha, k))


def merged(counts: Iterable[DraftCounts]) -> DraftCounts:
    """All of them together."""
    given = list(counts)
    return DraftCounts(
        lengths=_summed(item.lengths for item in given),
        histogram=_summed(item.histogram for item in given),
        rejected=sum(item.rejected for item in given),
    )


def _summed(columns: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(map(sum, zip_longest(*columns, fillvalue=0)))


def _tokens(count: int) -> str:
    return "token" if count == 1 else "tokens"

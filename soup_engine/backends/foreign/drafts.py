"""Figures of drafts that another engine makes and verifies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from soup_engine.backends.foreign.engine import DraftedTokens, StepReport
from soup_engine.config import SpeculativeConfig
from soup_engine.draft.acceptance import AcceptanceTally
from soup_engine.draft.intervals import DraftIntervals
from soup_engine.errors import UnsupportedParameterError
from soup_engine.messages import DraftCounts
from soup_engine.metrics.snapshot import AdapterSpeculation, SpeculationView


class FixedSpeculation:
    """The ``SpeculationControl`` of an engine whose drafts are settled when it starts."""

    def __init__(self, engine: str, config: SpeculativeConfig) -> None:
        self._engine = engine
        self.config = config

    def configure(self, config: SpeculativeConfig) -> SpeculationView:  # noqa: ARG002
        raise UnsupportedParameterError(
            f"{self._engine} settles at its start what drafts: restart with --speculative-decoding,"
            " --ngram or --auto-spec, or without any."
        )


class DraftFigures:
    """Counts since the start of the program: totals step by step, those of each adapter when an
    answer ends."""

    def __init__(self, config: SpeculativeConfig, notes: tuple[str, ...] = ()) -> None:
        self._config = config
        self.notes = notes
        self._lengths: list[int] = []
        self._histogram: list[int] = []
        self._rejected = 0
        self._by_adapter: defaultdict[str | None, AcceptanceTally] = defaultdict(AcceptanceTally)
        self._intervals = DraftIntervals()

    def record_step(self, report: StepReport, now: float) -> None:
        """Count what a step verified.

        Which draft was accepted whole follows from the two counts where all drafts of a step are
        of one length, as nearly always; else as many are taken to be as may be.
        """
        if not report.drafts:
            return
        lengths, histogram = (
            _by_length(report.drafts, above) for above in (report.drafted, report.accepted)
        )
        _add(self._lengths, lengths)
        _add(self._histogram, histogram)
        whole = sum(
            min(drafted, accepted) for drafted, accepted in zip(lengths, histogram, strict=True)
        )
        self._rejected += report.drafts - whole
        self._intervals.add(
            now,
            drafts=report.drafts,
            drafted=sum(report.drafted),
            accepted=sum(report.accepted),
        )

    def record_answer(self, adapter: str | None, drafts: Iterable[DraftedTokens]) -> DraftCounts:
        """Count what became of the drafts of an answer that has ended."""
        answer = AcceptanceTally()
        for draft in drafts:
            for tally in (answer, self._by_adapter[adapter]):
                tally.record(draft.drafted, draft.accepted, rejected=draft.accepted < draft.drafted)
        return answer.counts()

    def view(self) -> SpeculationView:
        counts = DraftCounts(tuple(self._lengths), tuple(self._histogram), self._rejected)
        method = "draft_model" if self._config.draft_model else "ngram"
        return SpeculationView(
            method=method if self._config.enabled else "off",
            draft=self._config.draft_model,
            num_tokens=self._config.num_tokens,
            always=True,
            counts=counts,
            adapters=tuple(
                AdapterSpeculation(
                    adapter=adapter,
                    counts=(of_adapter := tally.counts()),
                    alpha=of_adapter.alpha,
                    measured_speedup=None,
                )
                for adapter, tally in self._by_adapter.items()
            ),
            intervals=self._intervals.view(),
            mean_length=counts.drafted / counts.drafts if counts.drafts else None,
            draft_cost=None,
            verify_cost=None,
            plain_step_s=None,
            modelled_speedup=None,
            measured_speedup=None,
            notes=self.notes,
        )


def _by_length(total: int, above: tuple[int, ...]) -> list[int]:
    """How many of ``total`` are exactly 0, 1, … where ``above[i]`` are more than ``i``."""
    at_least = (total, *above, 0)
    return [more - most for more, most in pairwise(at_least)]


def _add(counts: list[int], more: list[int]) -> None:
    counts.extend([0] * (len(more) - len(counts)))
    for place, count in enumerate(more):
        counts[place] += count

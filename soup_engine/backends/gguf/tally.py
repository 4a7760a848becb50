"""What llama.cpp does, counted from what it answers, as ``StepReport``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from soup_engine.backends.foreign.engine import ReportStep, StepReport
from soup_engine.core.sequence import Sequence


class StepTally:
    """Counts what comes in one turn of the event loop, which is what one step computed, and
    reports it behind that.

    Args:
        kv_tokens: tokens that there is room for.
    """

    def __init__(self, report: ReportStep, *, kv_tokens: int) -> None:
        self._report = report
        self._kv_tokens = kv_tokens
        self._open: set[Sequence] = set()
        self._running: dict[Sequence, int] = {}
        """Tokens that each of the running sequences has keys and values of."""
        self._prompt_tokens = self._generated = 0
        self._queries = self._hits = 0
        self._reporting = False

    @contextmanager
    def answering(self, sequence: Sequence) -> Iterator[None]:
        """A sequence waits and runs."""
        self._open.add(sequence)
        try:
            yield
        finally:
            self._open.discard(sequence)
            self._running.pop(sequence, None)
            self._report_soon()

    def scheduled(self, sequence: Sequence) -> None:
        """A sequence has a slot."""
        self._running[sequence] = 0
        self._report_soon()

    def generated(self, sequence: Sequence, tokens: int, *, cached: int) -> None:
        """More of its answer came; of its prompt so much was there already."""
        if not tokens:
            return
        if not self._running[sequence]:
            self._running[sequence] = sequence.num_prompt_tokens
            self._prompt_tokens += sequence.num_prompt_tokens - cached
            self._queries += sequence.num_prompt_tokens
            self._hits += cached
        self._running[sequence] += tokens
        self._generated += tokens
        self._report_soon()

    def _report_soon(self) -> None:
        if not self._reporting:
            self._reporting = True
            asyncio.get_running_loop().call_soon(self._report_now)

    def _report_now(self) -> None:
        self._reporting = False
        report = StepReport(
            source=0,
            running=len(self._running),
            waiting=len(self._open) - len(self._running),
            kv_used_fraction=min(1.0, sum(self._running.values()) / self._kv_tokens),
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generated,
            preemptions=0,
            prefix_queries=self._queries,
            prefix_hits=self._hits,
        )
        self._prompt_tokens = self._generated = self._queries = self._hits = 0
        self._report(report)

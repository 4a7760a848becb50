"""Steps of the engine, as far as they show in what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from soup_engine.backends.foreign.engine import Arrival, DraftedTokens, ReportStep, StepReport

_TOGETHER_S = 0.02
"""What a step made arrives within that."""


@dataclass(slots=True, eq=False)
class OpenAnswer:
    """An answer that is being given.

    Attributes:
        prompt_tokens: that were looked up in the prefix cache.
    """

    prompt_tokens: int
    running: bool = False
    preemptions: int = 0


@dataclass(slots=True)
class _Step:
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    drafts: list[DraftedTokens] = field(default_factory=list)
    answers: set[OpenAnswer] = field(default_factory=set)


class Steps:
    """Reports steps of which only their tokens are known. On the engine's event loop.

    A step adds to each answer at most once, so the second arrival for an answer belongs to another
    step than the first. Drafts are counted when their answer ends: SGLang names them then.
    """

    def __init__(self, report: ReportStep) -> None:
        self._report = report
        self._open: set[OpenAnswer] = set()
        self._step = _Step()
        self._timer: asyncio.TimerHandle | None = None
        self.kv_used_fraction = 0.0

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def begin(self, prompt_tokens: int) -> OpenAnswer:
        answer = OpenAnswer(prompt_tokens)
        self._open.add(answer)
        return answer

    def end(self, answer: OpenAnswer) -> None:
        """Nothing more comes for it."""
        self._open.discard(answer)

    def take(self, answer: OpenAnswer, arrival: Arrival) -> None:
        """Count what arrived; with the last of an answer, report it."""
        if answer in self._step.answers:
            self.flush()
        step = self._step
        if not answer.running:
            answer.running = True
            step.prefix_queries += answer.prompt_tokens
            step.prefix_hits += arrival.cached_tokens
            step.prompt_tokens += answer.prompt_tokens - arrival.cached_tokens
        step.generation_tokens += len(arrival.tokens)
        step.preemptions += arrival.preemptions - answer.preemptions
        answer.preemptions = arrival.preemptions
        step.drafts += arrival.drafts or ()
        step.answers.add(answer)
        if arrival.last:
            self.end(answer)
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TOGETHER_S, self.flush)

    def flush(self) -> None:
        """Report the step whose tokens have arrived."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        step, self._step = self._step, _Step()
        if not step.answers:
            return
        running = sum(answer.running for answer in self._open)
        self._report(
            StepReport(
                source=0,
                running=running,
                waiting=len(self._open) - running,
                # Kept prefixes can go at any time, and do not count.
                kv_used_fraction=self.kv_used_fraction if running else 0.0,
                prompt_tokens=step.prompt_tokens,
                generation_tokens=step.generation_tokens,
                preemptions=step.preemptions,
                prefix_queries=step.prefix_queries,
                prefix_hits=step.prefix_hits,
                drafts=len(step.drafts),
                drafted=_above(draft.drafted for draft in step.drafts),
                accepted=_above(
                    (draft.accepted for draft in step.drafts),
                    max((draft.drafted for draft in step.drafts), default=0),
                ),
            )
        )


def _above(counts: Iterable[int], length: int | None = None) -> tuple[int, ...]:
    """At each place ``i`` how many are more than ``i``."""
    given = list(counts)
    length = max(given, default=0) if length is None else length
    return tuple(sum(count > place for count in given) for place in range(length))

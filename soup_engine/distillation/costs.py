"""What drafting a token and verifying some take, in the engine itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from statistics import median

from soup_engine.core.sequence import Sequence
from soup_engine.distillation.figures import DraftCosts, merged
from soup_engine.distillation.offline import Answer, OfflineEngine
from soup_engine.draft.proposer import DraftRequest, Proposer
from soup_engine.messages import DraftCounts
from soup_engine.sampling_params import SamplingParams

STEPS = 12
"""Steps of each kind that are timed."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A call of a proposer.

    Attributes:
        drafted: tokens for each sequence that was asked for; none for those whose draft model had
            to catch up first.
    """

    seconds: float
    drafted: tuple[int, ...]


class TimedProposer:
    """A proposer that notes what its latest call took.

    Attributes:
        filled: drafts are brought to the length asked for with any tokens: what verifying takes
            does not depend on what is verified, and a lookup finds something now and then only.
    """

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.last: Proposal | None = None
        self.filled = False

    @property
    def name(self) -> str:
        return self._proposer.name

    @property
    def computes(self) -> bool:
        return self._proposer.computes

    @property
    def passes(self) -> int:
        return self._proposer.passes

    def propose(self, requests: Rows[DraftRequest]) -> list[tuple[int, ...]]:
        started = time.perf_counter()
        drafts = self._proposer.propose(requests)
        if self.filled:
            drafts = [_filled(*pair) for pair in zip(requests, drafts, strict=True)]
        self.last = Proposal(
            seconds=time.perf_counter() - started,
            drafted=tuple(map(len, drafts)),
        )
        return drafts

    def forget(self, sequence: Sequence) -> None:
        self._proposer.forget(sequence)

    def reset(self) -> None:
        self._proposer.reset()


def _filled(request: DraftRequest, draft: tuple[int, ...]) -> tuple[int, ...]:
    return draft + (request.sequence.token_ids[-1],) * (request.num_tokens - len(draft))


@dataclass(frozen=True, slots=True)
class _Timed:
    """A step that only decoded: seconds of drafting and of all the rest."""

    propose_s: float
    rest_s: float
    num_tokens: int


class CostMeter:
    """Times steps with and without drafts, in turns, so that a machine that changes its pace
    meanwhile changes both.

    Args:
        switch: makes the engine draft so many tokens for each sequence, or with 0 none.
        streams: sequences in each step.
    """

    def __init__(
        self,
        engine: OfflineEngine,
        proposer: TimedProposer,
        switch: Callable[[int], None],
        *,
        streams: int,
        max_model_len: int,
    ) -> None:
        self._engine = engine
        self._proposer = proposer
        self._switch = switch
        self._streams = streams
        self._max_model_len = max_model_len

    def measure(
        self,
        prompts: Rows[tuple[int, ...]],
        lengths: Rows[int],
        *,
        adapter: str | None,
        between_steps: Callable[[], None],
    ) -> tuple[DraftCosts | None, DraftCounts]:
        """Costs for drafts of each of these lengths, and what became of those.

        Returns:
            Costs of those lengths that occurred: prompts may fill the context. ``None`` where
            none did.
        """
        self._proposer.filled = not self._proposer.computes
        try:
            return self._measured(prompts, lengths, adapter, between_steps)
        finally:
            self._proposer.filled = False

    def _measured(
        self,
        prompts: Rows[tuple[int, ...]],
        lengths: Rows[int],
        adapter: str | None,
        between_steps: Callable[[], None],
    ) -> tuple[DraftCosts | None, DraftCounts]:
        plain_s: list[float] = []
        draft_token: list[float] = []
        verify: dict[int, float] = {}
        counts: list[DraftCounts] = []
        for number, length in enumerate(lengths):
            own = [
                prompts[(number * self._streams + i) % len(prompts)] for i in range(self._streams)
            ]
            plain, _ = self._timed(own, 0, adapter, between_steps)
            assisted, drafts = self._timed(own, length, adapter, between_steps)
            counts.append(drafts)
            if not plain or not assisted:
                continue
            step_s = median(step.rest_s for step in plain)
            plain_s.append(step_s)
            verify[length] = median(step.rest_s for step in assisted) / step_s
            draft_token += [step.propose_s / step.num_tokens / step_s for step in assisted]
        if not verify:
            return None, merged(counts)
        return DraftCosts(median(plain_s), median(draft_token), verify), merged(counts)

    def _timed(
        self,
        prompts: Rows[tuple[int, ...]],
        length: int,
        adapter: str | None,
        between_steps: Callable[[], None],
    ) -> tuple[list[_Timed], DraftCounts]:
        """Steps in which each sequence had a draft of this length."""
        self._switch(length)
        found: list[_Timed] = []
        started = time.perf_counter()
        last_lengths = [0] * len(prompts)
        full = (length,) * len(prompts)

        def step_done(answers: Rows[Answer]) -> bool:
            nonlocal started, last_lengths
            took = time.perf_counter() - started
            proposal, self._proposer.last = self._proposer.last, None
            decoded = len(answers) == len(prompts) and all(last_lengths)
            last_lengths = [len(answer.token_ids) for answer in answers]
            if decoded and length == 0:
                found.append(_Timed(0.0, took, 0))
            elif decoded and proposal is not None and proposal.drafted == full:
                found.append(_Timed(proposal.seconds, took - proposal.seconds, length))
            between_steps()
            started = time.perf_counter()
            return len(found) < STEPS and not all(answer.finished for answer in answers)

        # Two steps more than are timed: one catches up with the prompt, one prepares its code.
        wanted = (STEPS + 2) * (length + 1) + length
        params = [
            SamplingParams(
                max_tokens=min(wanted, self._max_model_len - len(prompt)),
                temperature=0.0,
                ignore_eos=True,
            )
            for prompt in prompts
        ]
        answers = self._engine.answer(prompts, params, adapter=adapter, between_steps=step_done)
        return found[1:], merged(answer.drafts for answer in answers)

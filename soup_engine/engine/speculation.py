"""Speculation in the engine: who gets a draft, and what became of it.

It belongs to the engine's thread and outlives the proposers that it is given: what it counted
stays, whatever drafts, so that counters only grow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Rows

from soup_engine.config import SpeculativeConfig
from soup_engine.core.plan import ModelRunnerOutput, ScheduledSequence, SchedulerOutput
from soup_engine.core.sequence import Sequence
from soup_engine.draft.acceptance import AcceptanceTally
from soup_engine.draft.controller import DraftController, VerifiedDraft
from soup_engine.draft.proposer import DraftRequest, Proposer
from soup_engine.draft.report import SpeculationReport
from soup_engine.messages import DraftCounts
from soup_engine.metrics.snapshot import SpeculationView


class Speculation:
    """Asks a proposer for drafts before a step is planned, and learns from what the step made of
    them.

    Args:
        proposer: ``None`` for plain decoding until one is given.
        max_model_len: most tokens of a sequence.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        config: SpeculativeConfig,
        proposer: Proposer | None,
        *,
        max_model_len: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_model_len = max_model_len
        self._clock = clock
        self._report = SpeculationReport()
        self._tallies: dict[int, AcceptanceTally] = {}
        self.configure(config, proposer)

    def configure(
        self, config: SpeculativeConfig, proposer: Proposer | None, notes: tuple[str, ...] = ()
    ) -> None:
        """Draft in another way from the next step on, or with ``None`` not at all. What was
        learned about drafts begins anew; what was counted stays."""
        self.config = config
        self.proposer = proposer
        self.controller = DraftController(always=config.always, clock=self._clock)
        self._report.configure(config, None if proposer is None else proposer.name, notes)
        self._begin_step()

    def propose(self, sequences: Rows[Sequence]) -> None:
        """Set ``draft_token_ids`` of decoding sequences for the next step."""
        self._begin_step()
        proposer, controller = self.proposer, self.controller
        if proposer is None or not sequences or controller.wants_plain_step(len(sequences)):
            return
        started = self._clock()
        requests = [
            DraftRequest(sequence, room)
            for sequence in sequences
            if (room := self._room(sequence)) > 0 and controller.may_draft(sequence.adapter)
        ]
        if proposer.computes:
            requests = self._shortened(requests, len(sequences))
            drafts = proposer.propose(requests) if requests else []
            self._passes = proposer.passes
        else:
            drafts = self._chosen(requests, proposer.propose(requests), len(sequences))
        for request, draft in zip(requests, drafts, strict=True):
            request.sequence.draft_token_ids = draft
        self._propose_s = self._clock() - started

    def record(self, item: ScheduledSequence, num_chosen: int, num_delivered: int) -> None:
        """A draft was verified.

        Args:
            num_chosen: tokens that the sequence would go on with.
            num_delivered: those that became part of the answer before it ended.
        """
        sequence, num_drafted = item.sequence, len(item.drafts)
        num_accepted = min(max(0, num_chosen - 1), num_delivered)
        rejected = num_accepted < num_drafted and num_delivered == num_chosen
        tally = self._tallies.setdefault(sequence.sequence_id, AcceptanceTally())
        tally.record(num_drafted, num_accepted, rejected=rejected)
        self._report.record(
            self._clock(), sequence.adapter, num_drafted, num_accepted, rejected=rejected
        )
        self.controller.record_tested(
            sequence.sequence_id, sequence.adapter, num_accepted, int(rejected)
        )
        self._verified.append(VerifiedDraft(sequence.adapter, num_drafted, num_accepted))

    def complete(self, plan: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """The step is over, and its drafts were recorded."""
        if self.proposer is None or not plan.scheduled:
            return
        for item, tokens in result.sampled:
            expected = self._unverified.get(item.sequence.sequence_id)
            if expected is not None and tokens and not item.sequence.finished:
                agreed = tokens[0].token_id == expected
                self.controller.record_tested(
                    item.sequence.sequence_id, item.sequence.adapter, int(agreed), int(not agreed)
                )
        num_drafted = sum(len(item.drafts) for item in plan.scheduled)
        if plan.num_tokens - num_drafted == len(plan.scheduled):
            self.controller.record_step(
                num_rows=len(plan.scheduled),
                drafts=self._verified,
                propose_s=self._propose_s,
                passes=self._passes,
                step_s=result.duration_s,
            )
            self._report.note_rows(len(plan.scheduled))
        else:
            self.controller.count_step()

    def finish(self, sequence: Sequence) -> DraftCounts:
        """A sequence ended: drop what is kept for it, and say what became of its drafts."""
        if self.proposer is not None:
            self.proposer.forget(sequence)
        self.controller.forget(sequence.sequence_id)
        tally = self._tallies.pop(sequence.sequence_id, None)
        return DraftCounts() if tally is None else tally.counts()

    def reset(self) -> None:
        """A step failed half way."""
        if self.proposer is not None:
            self.proposer.reset()

    def view(self) -> SpeculationView:
        return self._report.view(self.controller, self._clock())

    def _begin_step(self) -> None:
        self._propose_s = 0.0
        self._passes = 0
        self._verified: list[VerifiedDraft] = []
        self._unverified: dict[int, int] = {}
        """First drafted token of the sequences whose draft is not verified, by id."""

    def _shortened(self, requests: list[DraftRequest], num_rows: int) -> list[DraftRequest]:
        """The requests that get a draft, for as many tokens as they get."""
        lengths = self.controller.lengths(_described(requests), num_rows, probe=True)
        return [
            DraftRequest(request.sequence, length)
            for request, length in zip(requests, lengths, strict=True)
            if length
        ]

    def _chosen(
        self, requests: list[DraftRequest], drafts: list[tuple[int, ...]], num_rows: int
    ) -> list[tuple[int, ...]]:
        """Of what was proposed for nothing, as much as is worth being verified."""
        found = [
            DraftRequest(request.sequence, len(draft))
            for request, draft in zip(requests, drafts, strict=True)
            if draft
        ]
        if not found:
            return drafts
        lengths = self.controller.lengths(_described(found), num_rows, probe=False)
        wanted = {
            request.sequence.sequence_id: length
            for request, length in zip(found, lengths, strict=True)
        }
        chosen = []
        for request, draft in zip(requests, drafts, strict=True):
            length = wanted.get(request.sequence.sequence_id, 0)
            if draft and not length:
                self._unverified[request.sequence.sequence_id] = draft[0]
            chosen.append(draft[:length])
        return chosen

    def _room(self, sequence: Sequence) -> int:
        """Drafted tokens that can be of use: one more token comes behind them."""
        answer = sequence.params.max_tokens - sequence.num_output_tokens
        context = self._max_model_len - sequence.num_tokens
        return min(self.config.num_tokens, answer - 1, context - 1)


def _described(requests: Rows[DraftRequest]) -> list[tuple[int, str | None, int]]:
    return [
        (request.sequence.sequence_id, request.sequence.adapter, request.num_tokens)
        for request in requests
    ]

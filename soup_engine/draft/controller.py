"""How much to draft, and whether at all: by what is measured on the traffic that is there.

Three loops, from fast to slow:

- Each step gives each sequence as many drafted tokens as promise the highest goodput in the
  present batch (``draft.allocation``), by the acceptance of the sequence so far and the measured
  price of drafting and verifying.
- Every ``CYCLE`` steps a few are decoded plainly. They are what the others are measured against,
  so a machine that slows down does not make drafts look bad, nor one that speeds up make them
  look good.
- An adapter whose drafts made decoding slower than plain over ``JUDGED_STEPS`` steps gets none
  for a while, then a short trial, then none for twice as long. What trials lose is kept below
  ``MAX_LOSS`` of the time.

The measured speed-up of an adapter counts what its drafts gave and what they took. They gave the
tokens that were accepted. They took their share of the time by which the step was longer than a
plain one, in which the whole batch would have had more tokens. With one sequence in the batch this
is the ratio of tokens a second.

Where proposals cost nothing (``Proposer.computes``), those that are not verified are compared with
what the target then chose, so that acceptance is known while nothing is drafted.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import groupby

from soup_engine.draft.allocation import Candidate, allocate
from soup_engine.draft.step_times import StepTimes

logger = logging.getLogger(__name__)

CYCLE = 64
"""Steps from one window of plain ones to the next, while anything is drafted."""

PLAIN_STEPS = 2
"""Length of such a window."""

JUDGED_STEPS = 32
TRIAL_STEPS = 8
"""Steps with drafts for an adapter before its measured speed-up counts: at first, in a trial."""

MEMORY = 0.98
"""Share that the measured speed-up keeps of what it knew, with each step."""

OUTLIER = 2.0
"""A step counts as at most this many times what it was expected to take."""

FIRST_PAUSE_S = 5.0
LONGEST_PAUSE_S = 120.0
"""How long an adapter gets no drafts after it was found slower: twice as long each time."""

MAX_LOSS = 0.01
"""Share of the time that may be lost on finding out whether drafts pay off again."""

PROBE_TOKENS = 2
PROBE_SEQUENCES = 4
"""Drafted for so many sequences when it is looked whether drafting pays off again."""

MAX_AWAITED = 4
"""How often a plain step is waited for that shows what so many rows take; where all steps have
prefill in them there is none."""

PRIOR_ALPHA = 0.7
PRIOR_WEIGHT = 1.0
"""Acceptance that is expected of something new, and how many tested tokens that is worth."""

SEQUENCE_MEMORY = 0.93
ADAPTER_MEMORY = 0.99
"""Share of the tested tokens that is remembered with each draft."""


class Acceptance:
    """Acceptance per tested token, lately."""

    __slots__ = ("_accepted", "_memory", "_rejected")

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._accepted = 0.0
        self._rejected = 0.0

    def record(self, num_accepted: int, num_rejected: int) -> None:
        self._accepted = self._accepted * self._memory + num_accepted
        self._rejected = self._rejected * self._memory + num_rejected

    @property
    def measured(self) -> float | None:
        """``None`` while nothing was tested."""
        tested = self._accepted + self._rejected
        return self._accepted / tested if tested else None

    def alpha(self, prior: float) -> float:
        """Blended with what is expected of something new."""
        tested = self._accepted + self._rejected
        return (self._accepted + PRIOR_WEIGHT * prior) / (tested + PRIOR_WEIGHT)


@dataclass(slots=True)
class AdapterState:
    """What is known of drafts for one adapter, or for the base.

    Attributes:
        rows: with drafts, which plain steps would have given a token each; this and the next two
            with the weights of ``MEMORY``.
        gained: tokens that were accepted.
        lost: tokens that the batch would have had in the time that drafts took.
        steps: that it was measured over since it was last switched on.
        lost_s: seconds that these steps took longer than plain ones for as many tokens.
        off_until: monotonic time until which it gets no drafts, ``None`` where it does.
        pause_s: of the latest pause, while it is not known that drafts pay off again.
        off_speedup: what was measured when it was last switched off.
    """

    acceptance: Acceptance
    rows: float = 0.0
    gained: float = 0.0
    lost: float = 0.0
    steps: int = 0
    lost_s: float = 0.0
    off_until: float | None = None
    pause_s: float = 0.0
    off_speedup: float | None = None

    @property
    def speedup(self) -> float | None:
        """Measured, against plain decoding; ``None`` while nothing was."""
        return (self.rows + self.gained) / (self.rows + self.lost) if self.rows else None

    @property
    def on_trial(self) -> bool:
        return self.pause_s > 0.0


@dataclass(frozen=True, slots=True)
class VerifiedDraft:
    """A draft and what the step made of it."""

    adapter: str | None
    num_drafted: int
    num_accepted: int


class DraftController:
    """Decides before a step and learns after it.

    Args:
        always: draft as much as may be, whatever is measured.
        clock: monotonic seconds, for pauses.
    """

    def __init__(
        self, *, always: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.times = StepTimes()
        self._always = always
        self._clock = clock
        self._adapters: dict[str | None, AdapterState] = {}
        self._sequences: dict[int, Acceptance] = {}
        self._steps = 0
        self._unpaid_s = 0.0
        self._awaited: Counter[int] = Counter()
        self._probes_left = 0
        self._probe_lost_s = 0.0
        self._probe_pause_s = FIRST_PAUSE_S
        self._next_probe = -math.inf

    def state(self, adapter: str | None) -> AdapterState:
        known = self._adapters.get(adapter)
        if known is None:
            known = self._adapters[adapter] = AdapterState(Acceptance(ADAPTER_MEMORY))
        return known

    @property
    def adapters(self) -> dict[str | None, AdapterState]:
        return dict(self._adapters)

    def wants_plain_step(self, num_rows: int) -> bool:
        """Whether the next step should be one without drafts, to measure others against."""
        if self._always:
            return False
        if self.times.plain_s(num_rows) is None and self._awaited[num_rows] < MAX_AWAITED:
            self._awaited[num_rows] += 1
            return True
        return self._steps % CYCLE < PLAIN_STEPS

    def may_draft(self, adapter: str | None) -> bool:
        """Whether an adapter gets drafts now; ends its pause when that is over."""
        state = self._adapters.get(adapter)
        if state is None or state.off_until is None or self._always:
            return True
        if self._clock() < state.off_until:
            return False
        state.off_until = None
        state.rows = state.gained = state.lost = state.lost_s = 0.0
        state.steps = 0
        return True

    def lengths(
        self, sequences: Rows[tuple[int, str | None, int]], num_rows: int, *, probe: bool
    ) -> list[int]:
        """Tokens to draft.

        Args:
            sequences: id, adapter, and most tokens, of each sequence that may have a draft.
            num_rows: decoding sequences in the step, those without a draft included.
            probe: acceptance is not known without drafting, so a little is drafted now and then
                where nothing else is.
        """
        if self._always:
            return [limit for _, _, limit in sequences]
        candidates = [
            Candidate(self._alpha(sequence_id, adapter), limit)
            for sequence_id, adapter, limit in sequences
        ]
        pass_cost = self.times.pass_cost(num_rows)

        def added(num_drafted: int, longest: int) -> float:
            return self.times.added(num_rows, num_drafted) + longest * pass_cost

        chosen = allocate(candidates, num_rows, added)
        if any(chosen):
            self._probe_pause_s = FIRST_PAUSE_S
        elif sequences and probe and self._probes():
            first = self._steps % len(sequences)
            for number in range(first, min(first + PROBE_SEQUENCES, len(sequences))):
                chosen[number] = min(sequences[number][2], PROBE_TOKENS)
        return chosen

    def record_tested(
        self, sequence_id: int, adapter: str | None, num_accepted: int, num_rejected: int
    ) -> None:
        """Drafted tokens of a sequence were accepted, and one was or was not rejected."""
        acceptance = self._sequences.get(sequence_id)
        if acceptance is None:
            acceptance = self._sequences[sequence_id] = Acceptance(SEQUENCE_MEMORY)
        acceptance.record(num_accepted, num_rejected)
        self.state(adapter).acceptance.record(num_accepted, num_rejected)

    def forget(self, sequence_id: int) -> None:
        self._sequences.pop(sequence_id, None)

    def record_step(
        self,
        *,
        num_rows: int,
        drafts: Rows[VerifiedDraft],
        propose_s: float,
        passes: int,
        step_s: float,
    ) -> None:
        """A step that only decoded took ``step_s``, after ``propose_s`` for its drafts.

        What proposing took when nothing came of it (a draft model that catches up with a prompt,
        say) is charged to the next drafts.

        Args:
            passes: forward passes of a draft model behind ``propose_s``; 0 where it did more.
        """
        self._unpaid_s += propose_s
        if passes:
            self.times.record_pass(num_rows, propose_s / passes)
        if not drafts:
            self.times.record_plain(num_rows, step_s)
            self._steps += self._steps % CYCLE < PLAIN_STEPS  # else it was no choice of ours
            return
        self._steps += 1
        num_drafted = sum(draft.num_drafted for draft in drafts)
        plain_s = self.times.plain_s(num_rows)
        if plain_s is None:
            return
        expected = 1.0 + self.times.added(num_rows, num_drafted)
        self.times.record_assisted(num_rows, num_drafted, step_s)
        total = min(step_s, OUTLIER * expected * plain_s) + self._unpaid_s
        self._unpaid_s = 0.0
        lost = (total / plain_s - 1.0) * num_rows / num_drafted
        for adapter, members in groupby(sorted(drafts, key=_by_adapter), key=_by_adapter):
            self._judge(adapter or None, list(members), lost, plain_s / num_rows)

    def count_step(self) -> None:
        """A step with prefill in it: it teaches nothing, and time goes on all the same."""
        self._steps += 1

    def _probes(self) -> bool:
        """Whether to try again, after a pause that doubles as long as nothing comes of it."""
        if self._clock() < self._next_probe:
            return False
        if self._probes_left == 0:
            self._probes_left = TRIAL_STEPS
            self._probe_lost_s = 0.0
        self._probes_left -= 1
        if self._probes_left == 0:
            pause = max(self._probe_pause_s, self._probe_lost_s / MAX_LOSS)
            self._next_probe = self._clock() + pause
            self._probe_pause_s = min(2 * self._probe_pause_s, LONGEST_PAUSE_S)
        return True

    def _judge(
        self, adapter: str | None, drafts: list[VerifiedDraft], lost: float, token_s: float
    ) -> None:
        """Note what the drafts of an adapter did in a step, and switch it off if that is slower.

        Args:
            lost: tokens that the batch would have had in the time that one drafted token took.
            token_s: seconds of one of those.
        """
        state = self.state(adapter)
        gained = sum(draft.num_accepted for draft in drafts)
        lost *= sum(draft.num_drafted for draft in drafts)
        state.rows = state.rows * MEMORY + len(drafts)
        state.gained = state.gained * MEMORY + gained
        state.lost = state.lost * MEMORY + lost
        state.steps += 1
        state.lost_s += (lost - gained) * token_s
        self._probe_lost_s += (lost - gained) * token_s
        needed = TRIAL_STEPS if state.on_trial else JUDGED_STEPS
        speedup = state.speedup
        if self._always or state.steps < needed or speedup is None:
            return
        if speedup < 1.0:
            doubled = min(max(FIRST_PAUSE_S, 2 * state.pause_s), LONGEST_PAUSE_S)
            state.pause_s = max(doubled, state.lost_s / MAX_LOSS)
            state.off_until = self._clock() + state.pause_s
            state.off_speedup = speedup
            logger.info(
                "drafts for %s made decoding %.2f times as fast as without, so there are none for"
                " %.0f s",
                adapter or "the base",
                speedup,
                state.pause_s,
            )
        elif state.steps >= JUDGED_STEPS:
            state.pause_s = 0.0

    def _alpha(self, sequence_id: int, adapter: str | None) -> float:
        prior = PRIOR_ALPHA
        state = self._adapters.get(adapter)
        if state is not None:
            prior = state.acceptance.alpha(PRIOR_ALPHA)
        acceptance = self._sequences.get(sequence_id)
        return prior if acceptance is None else acceptance.alpha(prior)


def _by_adapter(draft: VerifiedDraft) -> str:
    return draft.adapter or ""

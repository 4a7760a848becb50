"""The controller on a machine with a scripted clock, whose prices and acceptance are known."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from soup_engine.draft.break_even import best_num_tokens
from soup_engine.draft.controller import (
    FIRST_PAUSE_S,
    JUDGED_STEPS,
    LONGEST_PAUSE_S,
    DraftController,
    VerifiedDraft,
)

MAX_TOKENS = 5
WORST = 0.97


@dataclass
class Machine:
    """Decodes ``num_rows`` sequences, each on its adapter; all times in seconds.

    Attributes:
        alphas: acceptance per tested token, by row.
        verify: what each verified token adds to a step, in plain steps.
        first: what the first one adds on top.
        draft: what one pass of the draft model takes, in plain steps; 0 for lookups.
        noise: relative standard deviation of a step.
        pauses: probability that a step takes three times as long.
    """

    alphas: list[float]
    verify: float = 0.05
    first: float = 0.0
    draft: float = 0.0
    plain_s: float = 0.04
    noise: float = 0.05
    pauses: float = 0.01
    always: bool = False
    adapters: list[str | None] | None = None
    seed: int = 0
    now: float = 0.0
    tokens: float = 0.0
    drafted: int = 0
    lengths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.controller = DraftController(always=self.always, clock=lambda: self.now)
        self.adapters = self.adapters or [None] * len(self.alphas)

    def run(self, seconds: float) -> float:
        """Decode for so long; returns the speed against plain decoding."""
        started, tokens = self.now, self.tokens
        while self.now < started + seconds:
            self.step()
        plain = (self.now - started) / self.plain_s * len(self.alphas)
        return (self.tokens - tokens) / plain

    def step(self) -> None:
        num_rows = len(self.alphas)
        lengths = [0] * num_rows
        if not self.controller.wants_plain_step(num_rows):
            rows = [
                row
                for row, adapter in enumerate(self.adapters)
                if self.controller.may_draft(adapter)
            ]
            described = [(row, self.adapters[row], MAX_TOKENS) for row in rows]
            chosen = self.controller.lengths(described, num_rows, probe=self.draft > 0)
            for row, length in zip(rows, chosen, strict=True):
                lengths[row] = length
        self.lengths = lengths
        passes = max(lengths) if self.draft else 0
        propose_s = self.noisy(passes * self.draft * self.plain_s)
        drafted = sum(lengths)
        self.drafted += drafted
        price = 1.0 + self.verify * drafted + (self.first if drafted else 0.0)
        step_s = self.noisy(price * self.plain_s)
        drafts = []
        for row, length in enumerate(lengths):
            accepted = 0
            while accepted < length and self.random.random() < self.alphas[row]:
                accepted += 1
            self.tokens += accepted + 1
            adapter = self.adapters[row]
            if length:
                drafts.append(VerifiedDraft(adapter, length, accepted))
                self.controller.record_tested(row, adapter, accepted, int(accepted < length))
            elif not self.draft:
                hit = self.random.random() < self.alphas[row]
                self.controller.record_tested(row, adapter, int(hit), int(not hit))
        self.now += propose_s + step_s
        self.controller.record_step(
            num_rows=num_rows, drafts=drafts, propose_s=propose_s, passes=passes, step_s=step_s
        )

    def until_drafts(self) -> None:
        for _ in range(100):
            self.step()
            if any(self.lengths):
                return
        raise AssertionError("nothing was drafted")

    def noisy(self, seconds: float) -> float:
        factor = max(0.5, self.random.gauss(1.0, self.noise))
        return seconds * (3.0 * factor if self.random.random() < self.pauses else factor)

    def plain_speed(self, seconds: float) -> float:
        """What plain decoding comes to on this machine, its pauses included."""
        plain = Machine(
            self.alphas, noise=self.noise, pauses=self.pauses, plain_s=self.plain_s, seed=99
        )
        plain.controller.wants_plain_step = lambda _rows: True
        return plain.run(seconds)


@pytest.mark.parametrize("num_rows", [1, 16])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 0.95])
@pytest.mark.parametrize(("verify", "first"), [(0.01, 0.0), (0.03, 0.3), (0.1, 0.0), (0.3, 0.5)])
@pytest.mark.parametrize("draft", [0.0, 0.25])
def test_a_minute_is_never_much_slower_than_plain(
    num_rows: int, alpha: float, verify: float, first: float, draft: float
) -> None:
    machine = Machine([alpha] * num_rows, verify=verify, first=first, draft=draft)
    speed = machine.run(60.0) / machine.plain_speed(60.0)
    assert speed > WORST


@pytest.mark.parametrize("draft", [0.0, 0.1])
@pytest.mark.parametrize("alpha", [0.6, 0.8, 0.95])
def test_what_pays_off_is_nearly_used_up(alpha: float, draft: float) -> None:
    machine = Machine([alpha], verify=0.05, draft=draft)
    machine.run(20.0)
    _, best = best_num_tokens(alpha, c=draft, v=lambda k: 1.0 + 0.05 * k, largest=MAX_TOKENS)
    assert machine.run(60.0) / machine.plain_speed(60.0) > 0.9 * best


def test_each_sequence_gets_what_it_accepts() -> None:
    machine = Machine([0.95, 0.02, 0.9, 0.02], verify=0.1)
    machine.run(30.0)
    totals = [0, 0, 0, 0]
    for _ in range(200):
        machine.step()
        totals = [total + length for total, length in zip(totals, machine.lengths, strict=True)]
    assert min(totals[0], totals[2]) > 300
    assert max(totals[1], totals[3]) < 0.2 * min(totals[0], totals[2])


def test_long_drafts_give_way_in_a_batch_that_is_bound_by_arithmetic() -> None:
    lengths = {}
    for num_rows, verify in ((1, 0.02), (16, 0.03)):
        machine = Machine([0.8] * num_rows, verify=verify)
        machine.run(30.0)
        machine.until_drafts()
        lengths[num_rows] = sum(machine.lengths) / num_rows
    assert lengths[1] > 3
    assert lengths[16] < lengths[1]


def measured(controller: DraftController, adapter: str, *, accepted: int, step_s: float) -> None:
    """A step with one plain row beside one that had a draft of four tokens."""
    controller.record_tested(1, adapter, accepted, int(accepted < 4))
    controller.record_step(
        num_rows=2,
        drafts=[VerifiedDraft(adapter, 4, accepted)],
        propose_s=0.0,
        passes=0,
        step_s=step_s,
    )


def plain(controller: DraftController, step_s: float = 1.0) -> None:
    controller.record_step(num_rows=2, drafts=[], propose_s=0.0, passes=0, step_s=step_s)


def test_an_adapter_that_is_slower_with_drafts_is_switched_off_and_tried_again() -> None:
    now = 100.0
    controller = DraftController(clock=lambda: now)
    plain(controller)
    for _ in range(JUDGED_STEPS - 1):
        measured(controller, "slow", accepted=1, step_s=1.8)
        measured(controller, "fast", accepted=4, step_s=1.8)
        assert controller.may_draft("slow")
    measured(controller, "slow", accepted=1, step_s=1.8)
    assert not controller.may_draft("slow")
    assert controller.may_draft("fast")
    assert controller.may_draft(None)
    state = controller.adapters["slow"]
    assert state.off_speedup == pytest.approx(2 / 2.6)
    assert controller.adapters["fast"].speedup == pytest.approx(5 / 2.6)

    for _ in range(3):
        pause = state.pause_s
        assert pause >= FIRST_PAUSE_S
        now += pause - 0.01
        assert not controller.may_draft("slow")
        now += 0.02
        assert controller.may_draft("slow")
        trial = 0
        while controller.may_draft("slow"):
            measured(controller, "slow", accepted=1, step_s=1.8)
            trial += 1
        assert trial < JUDGED_STEPS
        assert state.pause_s >= min(2 * pause, LONGEST_PAUSE_S)

    now += state.pause_s
    for _ in range(JUDGED_STEPS):
        assert controller.may_draft("slow")
        measured(controller, "slow", accepted=4, step_s=1.8)
    assert not controller.adapters["slow"].on_trial


def test_always_drafts_whatever_is_measured() -> None:
    machine = Machine([0.0], verify=1.0, always=True)
    assert machine.run(20.0) < 0.3
    assert machine.lengths == [MAX_TOKENS]


def test_plain_steps_are_strewn_in_to_measure_against() -> None:
    machine = Machine([0.95], verify=0.02)
    machine.run(10.0)
    plain_steps = 0
    for _ in range(640):
        machine.step()
        plain_steps += not any(machine.lengths)
    assert 10 <= plain_steps <= 40


def test_it_keeps_up_with_a_machine_that_changes() -> None:
    """Twice as slow from one moment to the next: no reason to blame the drafts for it."""
    machine = Machine([0.9], verify=0.05)
    machine.run(20.0)
    machine.plain_s *= 2
    machine.run(10.0)
    assert machine.controller.may_draft(None)
    assert machine.run(30.0) > 2.0


def test_acceptance_that_rises_is_noticed() -> None:
    for draft in (0.0, 0.1):
        machine = Machine([0.0], verify=0.1, draft=draft)
        machine.run(30.0)
        machine.alphas = [0.95]
        machine.run(40.0)
        assert machine.run(60.0) > 1.5


def test_ended_sequences_are_forgotten() -> None:
    controller = DraftController()
    controller.record_tested(7, None, 1, 1)
    controller.forget(7)
    controller.forget(7)
    assert not controller._sequences


def test_what_was_spent_for_nothing_is_charged_to_the_next_drafts() -> None:
    controller = DraftController(clock=lambda: 0.0)
    plain(controller)
    controller.record_step(num_rows=2, drafts=[], propose_s=3.0, passes=0, step_s=1.0)
    measured(controller, "a", accepted=4, step_s=1.0)
    assert controller.adapters["a"].speedup == pytest.approx(5 / (1 + 2 * 3.0))
    measured(controller, "b", accepted=4, step_s=1.0)
    assert controller.adapters["b"].speedup == pytest.approx(5.0)

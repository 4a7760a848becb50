"""Who is asked for drafts and what is noted of them, without a model."""

from __future__ import annotations

from itertools import count

import pytest

from soup_engine.config import SpeculativeConfig
from soup_engine.core.plan import (
    ModelRunnerOutput,
    SampledToken,
    ScheduledSequence,
    SchedulerOutput,
)
from soup_engine.core.sequence import RowRef, Sequence
from soup_engine.draft.proposer import DraftRequest
from soup_engine.engine.speculation import Speculation
from soup_engine.errors import ConfigError
from soup_engine.messages import DraftCounts
from soup_engine.metrics.snapshot import SpeculationView
from soup_engine.plain_json import as_json, from_json
from soup_engine.sampling_params import SamplingParams

_ids = count()


def make_sequence(
    num_tokens: int = 10, *, max_tokens: int = 100, adapter: str | None = None
) -> Sequence:
    sequence_id = next(_ids)
    return Sequence(
        sequence_id=sequence_id,
        request_id=f"r{sequence_id}",
        index=0,
        token_ids=list(range(num_tokens)),
        num_prompt_tokens=num_tokens - 1,
        params=SamplingParams(max_tokens=max_tokens),
        arrival_time=0.0,
        adapter=adapter,
        row=RowRef(0, sequence_id),
    )


class Recorder:
    """Proposes the tokens 1, 2, 3, … and notes what it is asked."""

    name = "recorder"

    def __init__(self, *, computes: bool = False) -> None:
        self.computes = computes
        self.passes = 0
        self.asked: list[list[int]] = []
        self.forgotten: list[Sequence] = []

    def propose(self, requests: list[DraftRequest]) -> list[tuple[int, ...]]:
        self.asked.append([request.num_tokens for request in requests])
        self.passes = max((r.num_tokens for r in requests), default=0) if self.computes else 0
        return [tuple(range(1, request.num_tokens + 1)) for request in requests]

    def forget(self, sequence: Sequence) -> None:
        self.forgotten.append(sequence)

    def reset(self) -> None:
        self.asked.clear()


class Rig:
    """Speculation with a scripted clock, and steps in which all sequences decode."""

    def __init__(self, proposer: Recorder, **config: object) -> None:
        self.now = 0.0
        settings = SpeculativeConfig(**{"ngram": 2, "num_tokens": 4, **config})
        self.speculation = Speculation(
            settings, proposer, max_model_len=200, clock=lambda: self.now
        )

    def step(
        self,
        sequences: list[Sequence],
        *,
        accepted: int = 0,
        target: int = 1,
        price: float = 0.01,
        delivered: int | None = None,
    ) -> None:
        """``accepted`` of each draft are; without drafts the target's token is ``target``."""
        self.speculation.propose(sequences)
        items = [
            ScheduledSequence(s, 9, 1 + len(s.draft_token_ids), s.row, True, s.draft_token_ids)
            for s in sequences
        ]
        sampled = []
        for item in items:
            item.sequence.draft_token_ids = ()
            taken = min(accepted, len(item.drafts))
            tokens = (*item.drafts[:taken], 99 if item.drafts else target)
            sampled.append((item, tuple(SampledToken(token) for token in tokens)))
            if item.drafts:
                used = len(tokens) if delivered is None else delivered
                self.speculation.record(item, len(tokens), used)
        drafted = sum(len(item.drafts) for item in items)
        self.drafted = drafted
        duration_s = 1.0 + price * drafted
        self.now += duration_s
        self.speculation.complete(
            SchedulerOutput(scheduled=tuple(items), kv_operations=()),
            ModelRunnerOutput(sampled=tuple(sampled), duration_s=duration_s),
        )


def warm(rig: Rig, sequences: list[Sequence]) -> None:
    """The plain steps that come first."""
    for _ in range(4):
        rig.step(sequences, accepted=4)


def test_drafts_end_with_the_answer_and_the_context() -> None:
    proposer = Recorder()
    rig = Rig(proposer, always=True)
    sequences = [
        make_sequence(),
        make_sequence(max_tokens=4),  # one is there, so two and the target's own come
        make_sequence(max_tokens=2),
        make_sequence(198),
        make_sequence(199),
    ]
    rig.speculation.propose(sequences)
    assert proposer.asked == [[4, 2, 1]]
    assert [len(s.draft_token_ids) for s in sequences] == [4, 2, 0, 1, 0]


def test_without_a_proposer_nothing_happens() -> None:
    speculation = Speculation(SpeculativeConfig(), None, max_model_len=100)
    sequence = make_sequence()
    speculation.propose([sequence])
    assert sequence.draft_token_ids == ()
    assert speculation.view().method == "off"
    assert speculation.finish(sequence) == DraftCounts()


def test_a_draft_model_is_asked_for_what_is_wanted_only() -> None:
    proposer = Recorder(computes=True)
    rig = Rig(proposer)
    sequences = [make_sequence(), make_sequence()]
    warm(rig, sequences)
    for _ in range(60):
        rig.step(sequences, accepted=0, price=0.4)
    asked = [sum(lengths) for lengths in proposer.asked]
    assert asked[0] > 0
    assert sum(asked[30:]) < 20


def test_what_is_looked_up_is_dropped_where_it_does_not_pay() -> None:
    proposer = Recorder()
    rig = Rig(proposer)
    sequences = [make_sequence(), make_sequence()]
    warm(rig, sequences)
    for _ in range(60):
        rig.step(sequences, accepted=0, target=50, price=0.4)
    assert proposer.asked[-1] == [4, 4]
    assert rig.drafted == 0


def test_what_is_not_verified_is_compared_with_what_came() -> None:
    rig = Rig(Recorder())
    sequence = make_sequence()
    warm(rig, [sequence])
    for _ in range(80):
        rig.step([sequence], accepted=0, target=50, price=0.3)
    assert rig.drafted == 0
    for _ in range(80):
        rig.step([sequence], accepted=4, target=1, price=0.3)
        if rig.drafted:
            break
    assert rig.drafted > 0


def test_counts_of_answers_adapters_and_all() -> None:
    rig = Rig(Recorder(), always=True)
    base, tuned = make_sequence(), make_sequence(adapter="tuned")
    rig.step([base, tuned], accepted=4)
    rig.step([base], accepted=1)
    rig.step([base], accepted=3, delivered=2)
    counts = rig.speculation.finish(base)
    assert counts.histogram == (0, 1, 1, 0, 1)
    assert counts.rejected == 1
    assert rig.speculation.finish(base) == DraftCounts()
    view = rig.speculation.view()
    assert view.counts.drafts == 4
    assert view.counts.accepted == 4 + 4 + 1 + 2
    assert {item.adapter: item.counts.drafts for item in view.adapters} == {None: 3, "tuned": 1}
    assert sum(interval.accepted for interval in view.intervals) == view.counts.accepted


def test_the_view_shows_cost_and_speed_and_travels() -> None:
    rig = Rig(Recorder(computes=True))
    sequence = make_sequence()
    assert rig.speculation.view().measured_speedup is None
    for _ in range(40):
        rig.step([sequence], accepted=4, price=0.05)
    view = rig.speculation.view()
    assert view.method == "recorder"
    assert view.plain_step_s == pytest.approx(1.0)
    assert view.verify_cost == pytest.approx(1.2)
    assert view.mean_length == pytest.approx(4.0)
    assert view.measured_speedup == pytest.approx(5 / 1.2, rel=0.01)
    assert view.modelled_speedup == pytest.approx(5 / 1.2, rel=0.01)
    assert from_json(SpeculationView, as_json(view)) == view


def test_an_adapter_that_is_switched_off_says_why() -> None:
    rig = Rig(Recorder())
    slow = make_sequence(adapter="slow")
    view = None
    for _ in range(200):
        # The first token is always right, so that goodput goes on promising something.
        rig.speculation.controller._sequences.clear()
        rig.speculation.controller.state("slow").acceptance.record(50, 0)
        rig.step([slow], accepted=1, price=0.9)
        rig.speculation.controller.times._added.clear()
        rig.speculation.controller.times._drafted_levels.clear()
        view = rig.speculation.view().adapters[0] if rig.speculation.view().adapters else None
        if view is not None and view.reason is not None:
            break
    assert view is not None
    assert view.reason is not None
    assert "plain decoding" in view.reason
    assert view.off_for_s is not None
    assert view.off_for_s > 0


def test_counts_outlive_a_change_of_what_drafts() -> None:
    rig = Rig(Recorder(), always=True)
    sequence = make_sequence()
    rig.step([sequence], accepted=2)
    rig.speculation.configure(SpeculativeConfig(), None)
    rig.speculation.propose([sequence])
    assert sequence.draft_token_ids == ()
    view = rig.speculation.view()
    assert view.method == "off"
    assert view.counts.accepted == 2
    assert rig.speculation.finish(sequence).accepted == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_tokens": 0}, "spec-tokens"),
        ({"num_tokens": 16}, "spec-tokens"),
        ({"ngram": 0}, "ngram"),
        ({"draft_model": "https://models.example/draft"}, "not an address"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeculativeConfig(**settings)

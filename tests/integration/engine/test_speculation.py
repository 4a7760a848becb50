"""With drafts an engine answers what it answers without them, token by token.

A proposer that knows the plain answers, and makes mistakes, brings about every accepted length.
Rows with and without drafts, prefill chunks, preempted rows and prefix hits share the steps. The
last part breaks the engine on purpose and expects to notice it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from soup_engine.core.plan import ScheduledSequence, SchedulerOutput
from soup_engine.core.scheduler import Scheduler
from soup_engine.draft.ngram import NgramProposer
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.messages import DraftCounts, FinishReason, GenerationRequest
from soup_engine.metrics.recorder import EngineIdentity
from soup_engine.model import decode_graphs, model_input, model_runner
from soup_engine.model.decode_graphs import DecodeGraphs
from soup_engine.model.loader import LoadedModel
from soup_engine.model.model_input import ModelInput
from soup_engine.model.model_runner import ModelRunner
from soup_engine.sampling.logits_processors import _TokenCounts
from soup_engine.sampling.sampler import Sampler
from tests.support.equality import (
    Answer,
    KnowingProposer,
    Reference,
    compare,
    make_engine,
    mixed_traffic,
    request,
    run,
)
from tests.support.tiny_models import EOS, FAMILIES

Loader = Callable[[str], LoadedModel]
References = Callable[[str], Reference]
Arrivals = list[tuple[int, GenerationRequest]]

_IDENTITY = EngineIdentity(
    model="tiny",
    backend="transformers",
    device="cpu",
    dtype="float32",
    max_model_len=256,
    started_at=0.0,
)


def small_budget(loaded: LoadedModel, tokens: int = 360) -> int:
    return tokens * loaded.model.layout.bytes_per_token(torch.float32)


def plain_and_assisted(
    loaded: LoadedModel, arrivals: Arrivals, *, mistakes: float = 0.3, **settings: Any
) -> tuple[dict[str, Answer], dict[str, Answer], LLMEngine]:
    """Answers without and with drafts, and the engine that drafted."""
    plain = run(make_engine(loaded, max_model_len=settings.get("max_model_len")), arrivals)
    known = {name: answer.token_ids for name, answer in plain.items()}
    engine = make_engine(loaded, proposer=KnowingProposer(known, mistakes=mistakes), **settings)
    return plain, run(engine, arrivals), engine


def total(answers: dict[str, Answer]) -> tuple[int, int, int]:
    """Drafts, drafted tokens and accepted ones of all answers."""
    counts = [answer.drafts or DraftCounts() for answer in answers.values()]
    return (
        sum(count.drafts for count in counts),
        sum(count.drafted for count in counts),
        sum(count.accepted for count in counts),
    )


def same(plain: dict[str, Answer], assisted: dict[str, Answer]) -> bool:
    return all(
        assisted[name].token_ids == answer.token_ids
        and assisted[name].text == answer.text
        and assisted[name].finish_reason == answer.finish_reason
        and assisted[name].stop_reason == answer.stop_reason
        for name, answer in plain.items()
    )


def sampled_traffic(seed: int) -> Arrivals:
    """Rows with every sampling parameter there is, seeded, beside greedy ones."""
    arrivals, _ = mixed_traffic(seed)
    variants: list[dict[str, Any]] = [
        {"temperature": 1.0, "top_p": 0.95},
        {"temperature": 0.7, "top_k": 12, "repetition_penalty": 1.4},
        {"temperature": 1.3, "min_p": 0.02, "frequency_penalty": 0.8, "presence_penalty": 0.5},
        {"temperature": 0.0, "repetition_penalty": 1.8, "frequency_penalty": 1.0},
        {"temperature": 1.0, "logit_bias": {7: 4.0, 9: -100.0}},
    ]
    return [
        (step, replace(item, params=replace(item.params, seed=number, **variants[number % 5])))
        for number, (step, item) in enumerate(arrivals)
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_mixed_traffic_with_preemption(family: str, loaded: Loader, reference: References) -> None:
    model = loaded(family)
    arrivals, _ = mixed_traffic(seed=3, count=10)
    plain, assisted, engine = plain_and_assisted(
        model,
        arrivals,
        kv_bytes=small_budget(model),
        max_model_len=128,
        slab_tokens=128,
        max_num_batched_tokens=24,
    )
    assert same(plain, assisted)
    assert compare(reference(family), list(assisted.values())) == []
    drafts, drafted, accepted = total(assisted)
    assert drafts > 50
    assert 0.2 * drafted < accepted < 0.9 * drafted
    counters = engine.snapshot(_IDENTITY, "ready").counters
    assert counters.preemptions > 0
    assert counters.prefix_hits > 0
    assert counters.generation_tokens == sum(len(a.token_ids) for a in assisted.values())


def test_drafts_save_steps(loaded: Loader) -> None:
    arrivals: Arrivals = [(0, request(0, (1, 2, 3), 60))]
    _, assisted, engine = plain_and_assisted(loaded("llama"), arrivals, mistakes=0.0)
    assert total(assisted)[2] > 20
    assert engine.snapshot(_IDENTITY, "ready").counters.steps < 45


def test_sampled_rows_get_the_same_draws(loaded: Loader) -> None:
    plain, assisted, _ = plain_and_assisted(
        loaded("qwen2"), sampled_traffic(8), max_num_batched_tokens=24
    )
    assert same(plain, assisted)
    assert total(assisted)[2] > 50
    for name, answer in plain.items():
        for expected, got in zip(answer.logprobs, assisted[name].logprobs, strict=True):
            assert got == pytest.approx(expected, abs=1e-4)


def test_a_quantised_cache_and_drafts(loaded: Loader) -> None:
    """Rejected keys are overwritten with their scales."""
    arrivals, _ = mixed_traffic(seed=4)
    plain = run(make_engine(loaded("llama"), kv_type="q8_0"), arrivals)
    known = {name: answer.token_ids for name, answer in plain.items()}
    engine = make_engine(loaded("llama"), kv_type="q8_0", proposer=KnowingProposer(known))
    assisted = run(engine, arrivals)
    equal = sum(
        a == b
        for name, answer in plain.items()
        for a, b in zip(answer.token_ids, assisted[name].token_ids, strict=True)
    )
    assert equal > 0.95 * sum(len(answer.token_ids) for answer in plain.values())


def test_ngram_drafts(loaded: Loader, reference: References) -> None:
    """Greedy answers of random models run in circles, which is what a lookup finds."""
    arrivals, aborts = mixed_traffic(seed=9)
    plain = run(make_engine(loaded("llama"), max_num_batched_tokens=24), arrivals, aborts)
    engine = make_engine(loaded("llama"), max_num_batched_tokens=24, proposer=NgramProposer(3))
    assisted = run(engine, arrivals, aborts)
    assert compare(reference("llama"), list(assisted.values())) == []
    finished = {n: a for n, a in plain.items() if a.finish_reason is FinishReason.LENGTH}
    assert same(finished, assisted)
    assert total(assisted)[2] > 0
    assert not engine.speculation._tallies
    assert not engine.speculation.proposer._texts


def test_the_answer_ends_within_a_draft(loaded: Loader) -> None:
    """A stop string, a stop token, an end token and max_tokens, each amid accepted tokens."""
    model = loaded("llama")
    prompt = (5, 6, 7)
    whole = run(make_engine(model), [(0, request(0, prompt, 40, stop=["\0"]))])["r0"]
    pairs = (whole.text[start : start + 2] for start in range(6, 30))
    stop_string = next(pair for pair in pairs if pair.isascii())
    ends: list[dict[str, Any]] = [
        {"stop": [stop_string]},
        {"stop_token_ids": [whole.token_ids[11]]},
        {"logit_bias": {EOS: 100.0}, "ignore_eos": False, "max_tokens": 5},
        {"max_tokens": 1},
        {"max_tokens": 2},
        {"max_tokens": 7},
        {"max_tokens": 13, "logprobs": 3},
    ]
    arrivals: Arrivals = [
        (0, request(number, prompt, **{"max_tokens": 40, **end})) for number, end in enumerate(ends)
    ]
    plain, assisted, engine = plain_and_assisted(model, arrivals, mistakes=0.0)
    assert same(plain, assisted)
    assert assisted["r0"].stop_reason == stop_string
    assert assisted["r1"].finish_reason is FinishReason.STOP
    for number, name in enumerate(assisted):
        answer = assisted[name]
        assert len(answer.logprobs) == len(answer.token_ids), ends[number]
        counts = answer.drafts
        assert counts is not None
        assert counts.accepted <= len(answer.token_ids)
        assert counts.rejected == 0
    engine.check_integrity()


def test_an_end_token_within_a_draft_ends_the_answer_there(loaded: Loader) -> None:
    class DraftsBeyondTheEnd(KnowingProposer):
        def propose(self, requests: Any) -> list[tuple[int, ...]]:
            return [
                tuple([*self._answers["r0"], 1, 2, 3][item.sequence.num_output_tokens :][:5])
                for item in requests
            ]

    model = loaded("llama")
    whole = run(make_engine(model), [(0, request(0, (9, 8), 12))])["r0"].token_ids
    ending = [(0, request(0, (9, 8), 40, stop_token_ids=[whole[7]]))]
    plain = run(make_engine(model), ending)
    known = {"r0": plain["r0"].token_ids}
    assisted = run(make_engine(model, proposer=DraftsBeyondTheEnd(known)), ending)
    assert same(plain, assisted)
    counts = assisted["r0"].drafts
    assert counts is not None
    assert counts.accepted < counts.drafted
    assert counts.rejected == 0


def test_the_context_ends_within_a_draft(loaded: Loader) -> None:
    model = loaded("llama")
    arrivals: Arrivals = [(0, request(0, tuple(range(20)), 44))]
    plain = run(make_engine(model, max_model_len=64), arrivals)
    known = {"r0": plain["r0"].token_ids + [1] * 10}
    engine = make_engine(
        model, max_model_len=64, proposer=KnowingProposer(known, mistakes=0.0), kv_bytes=1 << 20
    )
    assisted = run(engine, arrivals)
    assert same(plain, assisted)
    assert assisted["r0"].finish_reason is FinishReason.LENGTH
    assert len(assisted["r0"].token_ids) == 44


def test_each_token_leaves_by_itself(loaded: Loader) -> None:
    plain = run(make_engine(loaded("llama")), [(0, request(0, (1, 2), 30))])
    known = {"r0": plain["r0"].token_ids}
    engine = make_engine(loaded("llama"), proposer=KnowingProposer(known, mistakes=0.0))
    engine.add_request(request(0, (1, 2), 30))
    most = 0
    while engine.has_work:
        outputs = engine.step()
        most = max(most, len(outputs))
        assert all(len(output.token_ids) == 1 for output in outputs)
        assert all(output.drafts is None for output in outputs[:-1])
    assert most >= 4
    # A step is one gap, however many tokens left with it.
    windows = engine.snapshot(_IDENTITY, "ready").histograms
    assert windows["itl"].count < 29
    assert windows["tpot"].count == 1


def test_padded_steps_with_drafts(loaded: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CUDA graph replays, computed on the CPU."""
    monkeypatch.setattr(decode_graphs, "SIGHTINGS_BEFORE_CAPTURE", 1)

    def recompute(
        step: Callable[[], torch.Tensor],
    ) -> tuple[torch.Tensor, Callable[[], None]]:
        output = step().clone()

        def replay() -> None:
            output.copy_(step())

        return output, replay

    model = loaded("gemma2")
    arrivals, _ = mixed_traffic(seed=9)
    plain = run(make_engine(model), arrivals)
    known = {name: answer.token_ids for name, answer in plain.items()}
    engine = make_engine(model, max_num_batched_tokens=24, proposer=KnowingProposer(known))
    runner = engine.runner
    graphs = DecodeGraphs(runner.model, runner.pool, recompute)
    engine.runner = ModelRunner(runner.model, runner.pool, runner.sampler, graphs)
    assert same(plain, run(engine, arrivals))
    assert any(queries > 1 for shape in graphs._graphs for _, _, queries in shape)


def test_several_answers_to_one_prompt(loaded: Loader) -> None:
    several = request(0, (1, 2, 3), 20, temperature=1.0, top_p=1.0, seed=11, n=3)
    engine = make_engine(loaded("llama"), proposer=NgramProposer(1))
    engine.add_request(several)
    tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while engine.has_work:
        for output in engine.step():
            tokens[output.index].extend(output.token_ids)
    for index, expected in tokens.items():
        single = request(1, (1, 2, 3), 20, temperature=1.0, top_p=1.0, seed=11 + index)
        assert run(make_engine(loaded("llama")), [(0, single)])["r1"].token_ids == expected


def test_a_draft_without_a_distribution_ends_nothing(loaded: Loader) -> None:
    """Logits behind a drafted token are NaN: the answer goes on as if it had not been drafted."""
    model = loaded("llama")
    arrivals: Arrivals = [(0, request(n, (4, 5, n), 20)) for n in range(3)]
    plain = run(make_engine(model), arrivals)
    known = {name: answer.token_ids for name, answer in plain.items()}
    engine = make_engine(model, proposer=KnowingProposer(known, mistakes=0.0))
    honest = engine.runner._forward
    broken = 0

    def forward(step: ModelInput) -> torch.Tensor:
        nonlocal broken
        logits = honest(step).clone()
        place = 0
        for item in step.sampling:
            if len(item.drafts) > 2:
                logits[place + 2] = torch.nan
                engine.runner.pool.slab(item.row.slab).keys(0).data[
                    item.row.row, item.start + 2 : item.start + 3
                ] = torch.nan
                broken += 1
            place += item.num_samples
        return logits

    engine.runner._forward = forward
    assert same(plain, run(engine, arrivals))
    assert broken > 3


def test_a_proposer_that_fails_ends_what_runs_and_no_more(loaded: Loader) -> None:
    class Failing(NgramProposer):
        def propose(self, _requests: Any) -> list[tuple[int, ...]]:
            raise RuntimeError("out of memory")

    engine = make_engine(loaded("llama"), proposer=Failing(2))
    answers = run(engine, [(0, request(0, (1, 2), 9))])
    assert answers["r0"].finish_reason is FinishReason.ERROR
    assert not engine.has_work


# --- Teeth: each of these engines is wrong, and must be found out.


def _accepts_one_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = model_runner.agreed_tokens

    def agreed(candidates: Any, drafts: tuple[int, ...]) -> Any:
        return tuple(candidates[: len(honest(candidates, drafts)) + 1])

    monkeypatch.setattr(model_runner, "agreed_tokens", agreed)


def _does_not_roll_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of a rejected token stay where those of the token in its place belong."""
    rejected: set[int] = set()
    honest_accept, honest_build = Scheduler.accept, model_runner.build_model_input

    def accept(self: Scheduler, item: ScheduledSequence, num_accepted: int) -> None:
        honest_accept(self, item, num_accepted)
        if num_accepted < len(item.drafts):
            rejected.add(item.sequence.sequence_id)

    def build(plan: SchedulerOutput, *arguments: Any) -> ModelInput:
        step = honest_build(plan, *arguments)
        first = 0
        for item in sorted(plan.scheduled, key=lambda item: (item.row.slab, item.row.row)):
            if item.sequence.sequence_id in rejected:
                write = next(w for w in step.writes if w.first_token <= first < w.last_token)
                write.index[first - write.first_token] += 1
            first += item.num_tokens
        rejected.clear()
        return step

    monkeypatch.setattr(Scheduler, "accept", accept)
    monkeypatch.setattr(model_runner, "build_model_input", build)


def _penalties_without_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = _TokenCounts.with_drafts
    monkeypatch.setattr(_TokenCounts, "with_drafts", lambda self, _drafts: honest(self, ()))


def _random_numbers_of_the_last_token(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Sampler.uniform
    monkeypatch.setattr(
        Sampler, "uniform", lambda self, own, _place: honest(self, own, own.num_output_tokens)
    )


def _padded_rows_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = model_input._padded

    def mixed(*arguments: Any) -> model_input.RowPadding:
        padding = honest(*arguments)
        return replace(padding, places=padding.places.flip(0))

    monkeypatch.setattr(model_input, "_padded", mixed)


def _drafts_not_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target sees token 0 in place of each drafted one."""
    honest = model_runner.build_model_input

    def build(plan: Any, *arguments: Any) -> Any:
        blank = tuple(
            replace(item, drafts=tuple(0 for _ in item.drafts)) for item in plan.scheduled
        )
        step = honest(replace(plan, scheduled=blank), *arguments)
        by_sequence = {item.sequence: item for item in plan.scheduled}
        return replace(step, sampling=tuple(by_sequence[i.sequence] for i in step.sampling))

    monkeypatch.setattr(model_runner, "build_model_input", build)


@pytest.mark.parametrize(
    "mutate",
    [
        _accepts_one_too_many,
        _does_not_roll_back,
        _penalties_without_drafts,
        _random_numbers_of_the_last_token,
        _padded_rows_mixed_up,
        _drafts_not_fed,
    ],
    ids=lambda value: value.__name__,
)
def test_the_comparison_has_teeth(
    mutate: Callable[[pytest.MonkeyPatch], None], loaded: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded("llama")
    arrivals = sampled_traffic(8)
    plain = run(make_engine(model), arrivals)
    known = {name: answer.token_ids for name, answer in plain.items()}
    mutate(monkeypatch)
    engine = make_engine(model, proposer=KnowingProposer(known))
    assert not same(plain, run(engine, arrivals))

"""Figures of pairs in the real engine, held to counts by hand over plain passes of the models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from soup_engine.distillation import costs
from soup_engine.distillation.measure_job import MeasureJob
from soup_engine.distillation.measurement import Measured, Measurement
from soup_engine.distillation.progress import Progress, Report, silent
from soup_engine.draft.acceptance import AcceptanceTally
from soup_engine.engine.input_processor import InputProcessor
from soup_engine.errors import AdapterError, ConfigError, DraftError, ModelPathError
from soup_engine.messages import DraftCounts
from soup_engine.model.model_input import MAX_BATCHED_QUERY
from soup_engine.prompt_file import ChatMessage, FilePrompt, PromptFile
from tests.support.adapters import make_adapter
from tests.support.tiny_models import EOS, VOCAB, byte_tokenizer, save_model

MakeJob = Callable[..., MeasureJob]
TOKENS = 24
COMMON = 259
"""Tokens that the tokenizer names."""


@pytest.fixture(autouse=True)
def few_timed_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "STEPS", 4)


@pytest.fixture
def make_job(tiny_model: Callable[[str], Path], tiny_draft: Path, prompts: PromptFile) -> MakeJob:
    def make(**settings: Any) -> MeasureJob:
        given: dict[str, Any] = {
            "target": str(tiny_model("llama")),
            "draft": str(tiny_draft),
            "ngram": None,
            "prompts": prompts,
            "rounds": 2,
            "max_tokens": TOKENS,
            "max_prompts": 6,
            "num_tokens": 3,
            "dtype": "float32",
        }
        return MeasureJob(**{**given, **settings})

    return make


def measure(job: MeasureJob, report: Report = silent) -> Measured:
    measurement = Measurement(job, report)
    measurement.prepare()
    measurement.run()
    return measurement.result(partial=False)


class Plain:
    """A model by itself: which of its first ``vocab`` tokens is the most likely one behind each of
    some."""

    def __init__(self, folder: str, vocab: int) -> None:
        self._vocab = vocab
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def best(self, tokens: list[int]) -> list[int]:
        logits = self._model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        best: list[int] = logits[:, : self._vocab].argmax(-1).tolist()
        return best

    def go_on(self, tokens: list[int], count: int) -> list[int]:
        grown = list(tokens)
        for _ in range(count):
            grown.append(self.best(grown)[-1])
        return grown[len(tokens) :]


def by_hand(
    target: Plain, draft: Plain, prompt: list[int], k: int, end_token: int
) -> tuple[list[bool], DraftCounts]:
    """Of one greedy answer: the draft's teacher-forced matches, and what becomes of drafts of
    ``k`` tokens (Leviathan et al., 2023, without sampling)."""
    answer = target.go_on(prompt, TOKENS)
    if end_token in answer:
        answer = answer[: answer.index(end_token) + 1]
    # A row of the padded embedding: nothing is drafted behind it.
    foreign = next((i for i, token in enumerate(answer) if token >= COMMON), len(answer))
    best = draft.best([*prompt, *answer])
    matches = [best[len(prompt) - 1 + i] == token for i, token in enumerate(answer[: foreign + 1])]
    tally = AcceptanceTally()
    # The prompt's own step chooses one token. The draft model then has to read the prompt, which
    # takes the step behind that.
    place = 2 if len(prompt) + 1 > MAX_BATCHED_QUERY else 1
    while place < len(answer) and place <= foreign:
        length = min(k, TOKENS - place - 1)
        if length == 0:
            break
        drafted = draft.go_on([*prompt, *answer[:place]], length)
        left = answer[place : place + length]
        accepted = next(
            (i for i, (one, other) in enumerate(zip(drafted, left, strict=False)) if one != other),
            min(len(drafted), len(left)),
        )
        cut_off = place + accepted == len(answer)
        tally.record(length, accepted, rejected=accepted < length and not cut_off)
        place += accepted + 1
    return matches, tally.counts()


def summed(found: list[DraftCounts]) -> tuple[int, int, int, int]:
    return (
        sum(counts.drafts for counts in found),
        sum(counts.drafted for counts in found),
        sum(counts.accepted for counts in found),
        sum(counts.rejected for counts in found),
    )


def test_acceptance_is_what_a_count_by_hand_gives(make_job: MakeJob) -> None:
    job = make_job()
    measured = measure(job)
    text = InputProcessor(byte_tokenizer())
    tokens = [list(text.render_chat(item.as_chat())) for item in job.prompts.prompts[:6]]
    assert job.draft is not None
    target, draft = Plain(job.target, VOCAB), Plain(job.draft, COMMON)
    by_prompt = [by_hand(target, draft, prompt, 3, EOS) for prompt in tokens]
    matches = [match for found, _ in by_prompt for match in found]
    (pair,) = measured.pairs
    assert pair.agreement == pytest.approx(sum(matches) / len(matches))
    drafts, drafted, accepted, rejected = summed([counts for _, counts in by_prompt])
    assert (pair.counts.drafts, pair.counts.drafted) == (drafts, drafted)
    assert (pair.counts.accepted, pair.counts.rejected) == (accepted, rejected)
    assert accepted > 0
    assert pair.alpha == accepted / (accepted + rejected)
    assert pair.acceptance_rate == accepted / drafted
    assert pair.by_position[0] >= pair.by_position[1] >= pair.by_position[2]
    assert (measured.prompts, measured.prompts_in_file) == (6, 20)
    assert pair.num_tokens == 3
    for spread in (pair.plain, pair.assisted, pair.speedup):
        assert spread is not None
        assert 0 < spread.low <= spread.median <= spread.high
        assert spread.rounds == 2
    assert pair.costs is not None
    assert pair.costs.draft_token > 0
    assert pair.modelled_speedup == pair.costs.modelled(pair.alpha, 3)


def test_the_target_as_its_own_draft_agrees_with_itself(make_job: MakeJob) -> None:
    job = make_job(num_tokens=None, streams=3)
    (pair,) = measure(replace(job, draft=job.target)).pairs
    assert pair.agreement is not None
    assert pair.agreement > 0.98  # all but tokens of padding
    assert pair.alpha is not None
    assert pair.alpha > 0.95
    # Three rows at a time draft and verify together.
    assert pair.costs is not None
    assert set(pair.costs.verify) <= {1, 2, 3, 4, 5, 6, 8}


def test_a_draft_with_other_tokens_goes_through_text(make_job: MakeJob, tmp_path: Path) -> None:
    other = save_model("llama", tmp_path / "other", seed=3)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    measured = measure(make_job(draft=str(other), rounds=1))
    assert "another tokenizer" in measured.notes[0]
    (pair,) = measured.pairs
    assert pair.agreement is None
    assert pair.counts.drafts > 0


def test_lookups_need_no_second_model(make_job: MakeJob) -> None:
    measured = measure(make_job(draft=None, ngram=2, num_tokens=None, max_tokens=60))
    assert measured.draft == "lookup of 2 tokens"
    (pair,) = measured.pairs
    assert pair.num_tokens == 5
    assert pair.agreement is not None
    assert pair.costs is not None
    assert pair.costs.draft_token < 0.2


def test_each_adapter_is_measured_by_itself(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(rounds=1, min_acceptance=0.05)
    folder = make_adapter(
        Path(job.target), tmp_path / "lora", seed=1, r=4, strength=1.0,
        target_modules=["q_proj", "v_proj", "down_proj"],
    )  # fmt: skip
    measured = measure(replace(job, adapters=(("mine", folder),)))
    base, mine = measured.pairs
    assert (base.adapter, mine.adapter) == (None, "mine")
    assert base.agreement != mine.agreement
    assert measured.below_floor == tuple(
        pair.adapter for pair in measured.pairs if (pair.alpha or 0.0) < 0.05
    )


def test_a_floor_that_is_missed(make_job: MakeJob) -> None:
    assert measure(make_job(rounds=1, min_acceptance=0.999)).below_floor == (None,)


def test_an_interrupt_leaves_the_rounds_that_are_complete(make_job: MakeJob) -> None:
    def interrupting(progress: Progress) -> None:
        if progress.stage == "round 2 of 2, plain":
            raise KeyboardInterrupt

    measurement = Measurement(make_job(), interrupting)
    measurement.prepare()
    with pytest.raises(KeyboardInterrupt):
        measurement.run()
    measured = measurement.result(partial=True)
    assert measured.partial
    (pair,) = measured.pairs
    assert pair.speedup is not None
    assert pair.speedup.rounds == 1
    # What was running is gone from the engine, which could go on.
    measurement._engine.engine.check_integrity()
    assert not measurement._engine.engine.has_work


def test_what_cannot_be_measured(make_job: MakeJob, tmp_path: Path) -> None:
    for settings, sentence in (
        ({"ngram": 3}, "either --draft or --ngram"),
        ({"draft": None}, "either --draft or --ngram"),
        ({"draft": "http://127.0.0.1/draft"}, "not an address"),
        ({"rounds": 0}, "--rounds is at least 1"),
        ({"num_tokens": 16}, "from 1 to 15"),
        ({"min_acceptance": 1.5}, "from 0 to 1"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            make_job(**settings)
    with pytest.raises(ModelPathError):
        measure(make_job(draft="/no/such draft"))
    with pytest.raises(AdapterError):
        measure(make_job(adapters=(("x", tmp_path),)))
    long = PromptFile((FilePrompt(1, (ChatMessage("user", "x" * 400),)),))
    with pytest.raises(DraftError, match="None of the 1 prompts leaves room"):
        measure(make_job(prompts=long))

"""A draft model beside the target: the same answers, and rows that follow the target's.

The best possible draft is the target itself: nearly all of what it proposes has to be accepted,
for sampled rows too, or its rows, its positions or its random numbers are wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from soup_engine.config import EngineConfig, ModelConfig, SpeculativeConfig
from soup_engine.engine.drafting import build_proposer, common_vocabulary, load_draft
from soup_engine.engine.llm_engine import LLMEngine
from soup_engine.engine.speculation import Speculation
from soup_engine.errors import InsufficientMemoryError, ModelPathError
from soup_engine.messages import DraftCounts, GenerationRequest
from soup_engine.model import draft_model
from soup_engine.model.draft_model import DraftModelProposer
from soup_engine.model.loader import LoadedModel, load_model
from tests.support.equality import Answer, make_engine, mixed_traffic, request, run
from tests.support.tiny_models import CONFIGS, VOCAB, byte_tokenizer, save_model

Loader = Callable[[str], LoadedModel]
Arrivals = list[tuple[int, GenerationRequest]]


def load(folder: Path) -> LoadedModel:
    config = ModelConfig(path=str(folder), dtype="float32", device="cpu")
    return load_model(config, lambda _stage, _share: None)


def give_draft(
    engine: LLMEngine, draft: LoadedModel, *, num_row_tokens: int = 8192, **settings: Any
) -> DraftModelProposer:
    """Let a draft model draft for an engine, always as much as may be."""
    vocab = engine.runner.model.vocab_size
    proposer = DraftModelProposer(
        draft,
        **{
            "target_vocab": vocab,
            "common_vocab": min(vocab, draft.model.vocab_size),
            "sampler": engine.runner.sampler,
            "num_row_tokens": num_row_tokens,
            "max_num_seqs": 8,
            "max_model_len": engine.capacity.max_model_len,
            "block_size": 16,
            "slab_tokens": 256,
            "kv_dtype": torch.float32,
            **settings,
        },
    )
    engine.speculation = Speculation(
        SpeculativeConfig(draft_model="draft", always=True),
        proposer,
        max_model_len=engine.capacity.max_model_len,
    )
    return proposer


def total(answers: dict[str, Answer]) -> tuple[int, int]:
    """Drafted and accepted tokens."""
    counts = [answer.drafts or DraftCounts() for answer in answers.values()]
    return sum(c.drafted for c in counts), sum(c.accepted for c in counts)


def assert_same(plain: dict[str, Answer], assisted: dict[str, Answer]) -> None:
    for name, answer in plain.items():
        assert assisted[name].token_ids == answer.token_ids
        assert assisted[name].finish_reason == answer.finish_reason


def sampled(arrivals: Arrivals) -> Arrivals:
    variants: list[dict[str, Any]] = [
        {"temperature": 1.0, "top_p": 0.95},
        {"temperature": 0.0},
        {"temperature": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"temperature": 1.2, "logit_bias": {3: 2.0, VOCAB - 1: -50.0}},
    ]
    return [
        (step, replace(item, params=replace(item.params, seed=number, **variants[number % 4])))
        for number, (step, item) in enumerate(arrivals)
    ]


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_the_target_itself_as_its_draft(family: str, loaded: Loader) -> None:
    """Greedy and sampled rows, in chunks, with late arrivals and aborts."""
    model = loaded(family)
    arrivals, aborts = mixed_traffic(seed=12)
    arrivals = sampled(arrivals)
    plain = run(make_engine(model), arrivals, aborts)
    engine = make_engine(model, max_num_batched_tokens=32)
    proposer = give_draft(engine, model)
    assisted = run(engine, arrivals, aborts)
    lasting = {n: a for n, a in plain.items() if int(n[1:]) < len(arrivals) - 2}
    assert_same(lasting, assisted)
    drafted, accepted = total(assisted)
    assert drafted > 200
    # What is drafted beyond the end of an answer is not accepted.
    rejected = sum(answer.drafts.rejected for answer in assisted.values() if answer.drafts)
    assert rejected <= 0.01 * drafted
    assert accepted > 0.9 * drafted
    proposer.check_integrity()
    assert not proposer._followers
    assert proposer._cache.usage().row_blocks_used == 0


def test_a_draft_that_knows_nothing_changes_nothing(
    loaded: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are preempted, and chunks so short that several steps are needed to catch up."""
    monkeypatch.setattr(draft_model, "CATCH_UP_TOKENS", 24)
    model = loaded("llama")
    stranger = load(save_model("qwen2", tmp_path / "draft", seed=7))
    arrivals, _ = mixed_traffic(seed=3)
    arrivals = sampled(arrivals)
    plain = run(make_engine(model, max_model_len=128), arrivals)
    engine = make_engine(
        model,
        kv_bytes=360 * model.model.layout.bytes_per_token(torch.float32),
        max_model_len=128,
        slab_tokens=128,
        max_num_batched_tokens=24,
    )
    proposer = give_draft(engine, stranger)
    assert_same(plain, run(engine, arrivals))
    assert engine.scheduler.preemptions > 0
    proposer.check_integrity()
    assert not proposer._followers


def test_with_little_memory_of_its_own_it_drafts_for_some(loaded: Loader) -> None:
    model = loaded("llama")
    arrivals, _ = mixed_traffic(seed=5)
    plain = run(make_engine(model, max_model_len=160), arrivals)
    drafted = {}
    for num_row_tokens in (176, 8192):
        engine = make_engine(model, max_model_len=160)
        proposer = give_draft(engine, model, num_row_tokens=num_row_tokens)
        assisted = run(engine, arrivals)
        assert_same(plain, assisted)
        proposer.check_integrity()
        drafted[num_row_tokens] = total(assisted)[0]
    assert 0 < drafted[176] < 0.8 * drafted[8192]


@pytest.mark.parametrize("draft_vocab", [VOCAB - 4, VOCAB + 24])
def test_padded_vocabularies(draft_vocab: int, loaded: Loader, tmp_path: Path) -> None:
    """Ids that only one of them has are never drafted; they carry the highest logits here."""
    model = loaded("llama")
    torch.manual_seed(0)
    config = LlamaConfig(**{**CONFIGS["llama"]().to_dict(), "vocab_size": draft_vocab})
    draft = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        draft.get_output_embeddings().weight[259:] *= 50.0
    draft.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    padded = load(tmp_path)
    assert common_vocabulary(padded, model) == 259
    arrivals: Arrivals = [(0, request(n, (1, 2, n), 20, logit_bias={262: 9.0})) for n in range(3)]
    plain = run(make_engine(model), arrivals)
    engine = make_engine(model)
    give_draft(engine, padded, common_vocab=259)
    assisted = run(engine, arrivals)
    assert_same(plain, assisted)
    assert any(262 in answer.token_ids for answer in plain.values())


class TestLoading:
    def test_a_named_draft(self, loaded: Loader, tiny_model: Callable[[str], Path]) -> None:
        model = loaded("llama")
        folder = str(tiny_model("qwen2"))
        config = SpeculativeConfig(draft_model=folder, ngram=3)
        draft = load_draft(config, model, ModelConfig(path=model.source), lambda *_: None)
        assert draft.model is not None
        assert draft.common_vocab == 259
        assert any("both set" in note for note in draft.notes)
        engine = make_engine(model)
        settings = EngineConfig(model=ModelConfig(path=model.source))
        proposer = build_proposer(draft, model, settings, engine.capacity, engine.runner.sampler)
        assert isinstance(proposer, DraftModelProposer)

    def test_what_is_not_there_is_an_error(self, loaded: Loader, tmp_path: Path) -> None:
        model = loaded("llama")
        config = SpeculativeConfig(draft_model=str(tmp_path / "none"))
        with pytest.raises(ModelPathError):
            load_draft(config, model, ModelConfig(path=model.source), lambda *_: None)

    def test_auto_without_a_draft_is_plain_decoding_and_a_note(self, loaded: Loader) -> None:
        model = loaded("llama")
        config = SpeculativeConfig(auto=True)
        draft = load_draft(config, model, ModelConfig(path=model.source), lambda *_: None)
        assert draft.model is None
        assert not draft.config.enabled
        assert "No draft is registered" in draft.notes[0]

    def test_no_room_for_its_rows(
        self, loaded: Loader, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = loaded("llama")
        config = SpeculativeConfig(draft_model=str(tiny_model("qwen2")))
        draft = load_draft(config, model, ModelConfig(path=model.source), lambda *_: None)
        engine = make_engine(model)
        monkeypatch.setattr("soup_engine.engine.drafting.available_memory", lambda _device: 1000)
        settings = EngineConfig(model=ModelConfig(path=model.source))
        with pytest.raises(InsufficientMemoryError, match="draft model"):
            build_proposer(draft, model, settings, engine.capacity, engine.runner.sampler)


# --- Teeth.


def _does_not_roll_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_model, "_agreement", lambda _one, other, _start: len(other) - 1)


def _loses_the_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DraftModelProposer._as_target
    monkeypatch.setattr(
        DraftModelProposer, "_as_target", lambda self, logits: honest(self, logits).flip(-1)
    )


@pytest.mark.parametrize("mutate", [_does_not_roll_back, _loses_the_random_numbers])
def test_acceptance_has_teeth(
    mutate: Callable[[pytest.MonkeyPatch], None], loaded: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded("llama")
    arrivals = sampled(mixed_traffic(seed=12)[0])
    mutate(monkeypatch)
    engine = make_engine(model, max_num_batched_tokens=32)
    give_draft(engine, model)
    drafted, accepted = total(run(engine, arrivals))
    assert accepted < 0.8 * drafted

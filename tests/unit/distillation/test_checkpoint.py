from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from soup_engine.distillation.checkpoint import (
    Checkpoint,
    Corpus,
    RunIdentity,
    TrainingState,
    adam_moments,
    parameters_by_name,
    restore,
)
from soup_engine.distillation.corpus import Example, TargetView, TrainingExample
from soup_engine.distillation.recipe import Recipe
from soup_engine.errors import ConfigError, DraftError

IDENTITY = RunIdentity("target", "base", "data", "cpu", "float32", Recipe())


def example(first: int, answer: int) -> TrainingExample:
    tokens = torch.arange(answer * 3, dtype=torch.int32).view(answer, 3)
    view = TargetView(tokens, tokens.float() + first)
    return TrainingExample(Example((first, 2), tuple(range(answer))), view)


def test_what_is_learned_from_comes_back(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "kept")
    checkpoint.begin(IDENTITY)
    assert checkpoint.load_corpus() is None
    corpus = Corpus((example(1, 2), example(5, 1)), (example(9, 3),), 0.1 + 0.2)
    checkpoint.save_corpus(corpus)
    loaded = checkpoint.load_corpus()
    assert loaded is not None
    assert loaded.acceptance == corpus.acceptance
    for before, after in (
        (corpus.training, loaded.training),
        (corpus.validation, loaded.validation),
    ):
        assert [item.example for item in before] == [item.example for item in after]
        for one, other in zip(before, after, strict=True):
            assert torch.equal(one.target.token_ids, other.target.token_ids)
            assert torch.equal(one.target.logprobs, other.target.logprobs)


def trained_model(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=True)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_weights_and_moments_come_back(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "kept")
    checkpoint.begin(IDENTITY)
    assert checkpoint.load_state() is None
    model, optimizer = trained_model(0)
    named = parameters_by_name(model)
    checkpoint.save_state(TrainingState(7, named, adam_moments(optimizer, named)))
    other, its_optimizer = trained_model(1)
    state = checkpoint.load_state()
    assert state is not None
    assert state.step == 7
    its_named = parameters_by_name(other)
    restore(state, its_optimizer, its_named)
    for name, parameter in named.items():
        assert torch.equal(parameter, its_named[name])
        for kind, value in optimizer.state[parameter].items():
            assert torch.equal(value, its_optimizer.state[its_named[name]][kind])
    with pytest.raises(DraftError, match="other weights"):
        restore(state, its_optimizer, {"else": its_named["weight"]})


def test_it_only_goes_on_with_the_same(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "kept")
    with pytest.raises(DraftError, match="leave out --resume"):
        checkpoint.check(IDENTITY)
    checkpoint.begin(IDENTITY)
    checkpoint.check(IDENTITY)
    with pytest.raises(ConfigError, match="begun with --batch-size 8, not 4"):
        checkpoint.check(replace(IDENTITY, recipe=Recipe(batch_size=4)))
    with pytest.raises(DraftError, match="another draft base"):
        checkpoint.check(replace(IDENTITY, draft_base="other"))
    checkpoint.remove()
    assert not checkpoint.exists


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path / "kept")
    checkpoint.begin(IDENTITY)
    (checkpoint.folder / "training.safetensors").write_bytes(b"nonsense")
    with pytest.raises(DraftError, match=r"training\.safetensors is damaged"):
        checkpoint.load_state()

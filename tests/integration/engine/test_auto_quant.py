"""The version of a model that is served is the one that measuring says."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from soup_engine.auto_quant import Choice, Measured, choose_version
from soup_engine.backends.factory import create_backend
from soup_engine.config import EngineConfig, ModelConfig, SchedulerConfig
from soup_engine.errors import CannotRunError, ConfigError, ModelPathError
from soup_tui.config import Settings
from soup_tui.launch import open_runtime

TinyModel = Callable[[str], Path]


@pytest.fixture
def original(tiny_model: TinyModel) -> Path:
    return tiny_model("llama")


@pytest.fixture
def versions(original: Path, tmp_path: Path) -> dict[str, Path]:
    """The same weights, others, and a folder that is no model."""
    import torch
    from transformers import AutoModelForCausalLM

    same, other = tmp_path / "same", tmp_path / "other"
    for folder in (same, other):
        shutil.copytree(original, folder)
    model = AutoModelForCausalLM.from_pretrained(other)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    model.save_pretrained(other)
    return {"same": same, "other": other, "none": tmp_path / "none"}


def choose(original: Path, *versions: Path, floor: float = 0.9) -> Choice:
    config = EngineConfig(
        model=ModelConfig(path=str(original), device="cpu", dtype="float32"),
        scheduler=SchedulerConfig(max_num_seqs=8),
    )
    paths = [str(path) for path in versions]
    return choose_version(config, paths, floor, create_backend, lambda _stage, _share: None)


def test_the_fastest_that_agrees_is_chosen(original: Path, versions: dict[str, Path]) -> None:
    choice = choose(original, versions["other"], versions["none"], versions["same"])
    assert choice.path == str(versions["same"])
    assert choice.warning is None
    other, none, same = choice.versions
    assert same.agreement == 1.0
    assert other.agreement is not None
    assert other.agreement < 0.9
    assert min(m.tokens_per_s or 0 for m in (choice.original, other, same)) > 0
    assert (none.agreement, none.tokens_per_s) == (None, None)
    header, first, *rows = choice.rows()
    assert header == ("version", "agreement", "tokens/s", "")
    assert first[3] == "the original"
    assert [row[3] for row in rows] == ["", none.refusal, "chosen"]


def test_the_nearest_is_chosen_with_a_warning_where_none_agrees(
    original: Path, versions: dict[str, Path]
) -> None:
    choice = choose(original, versions["other"])
    assert choice.path == str(versions["other"])
    assert choice.warning is not None
    assert "No version puts 90% of the original's tokens" in choice.warning


def test_without_versions_that_can_be_served_it_refuses(
    original: Path, versions: dict[str, Path]
) -> None:
    with pytest.raises(ConfigError, match="nothing to choose from"):
        choose(original)
    with pytest.raises(ConfigError, match="named twice"):
        choose(original, versions["same"], versions["same"])
    with pytest.raises(CannotRunError, match="None of the versions can be served"):
        choose(original, versions["none"])


def test_speed_decides_among_those_that_agree() -> None:
    from soup_engine.auto_quant import _chosen

    slow = Measured(path="slow", agreement=0.99, tokens_per_s=10.0)
    fast = Measured(path="fast", agreement=0.91, tokens_per_s=20.0)
    wrong = Measured(path="wrong", agreement=0.89, tokens_per_s=90.0)
    original = Measured(path="x", agreement=1.0, tokens_per_s=5.0)
    assert _chosen(original, (slow, fast, wrong), 0.9).path == "fast"
    assert _chosen(original, (slow, fast, wrong), 0.95).path == "slow"
    assert _chosen(original, (fast, wrong), 0.95).path == "fast"


@pytest.mark.parametrize(
    "named",
    [
        {"auto_quant": ("./not-there",)},
        {"auto_quant": ("not-there.gguf",)},
        {"speculative_decoding": "./not-there"},
    ],
)
def test_other_models_are_looked_for_before_the_first_is_loaded(
    original: Path, named: dict[str, Any]
) -> None:
    stages: list[str] = []
    settings = Settings(model=str(original), device="cpu", port=0, **named)
    with pytest.raises(ModelPathError, match="not-there"):
        open_runtime(settings, lambda stage, _share: stages.append(stage))
    assert not any("weights" in stage or "hub" in stage for stage in stages)


@pytest.mark.parametrize(
    ("model", "version", "sentence"),
    [
        ("original", "one.gguf", "one.gguf is a GGUF file, so --model has to be one, too."),
        ("one.gguf", "original", "gguf serves GGUF files, and .* is none."),
    ],
)
def test_versions_are_of_the_kind_that_the_backend_serves(
    original: Path, tmp_path: Path, model: str, version: str, sentence: str
) -> None:
    pytest.importorskip("xllamacpp")
    (tmp_path / "one.gguf").write_bytes(b"GGUF")
    places = {"original": str(original), "one.gguf": str(tmp_path / "one.gguf")}
    settings = Settings(model=places[model], auto_quant=(places[version],), port=0)
    with pytest.raises(ConfigError, match=sentence):
        open_runtime(settings, lambda _stage, _share: None)

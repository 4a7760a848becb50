"""Where models are found, and what is said when they are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soup_engine.config import ModelConfig
from soup_engine.errors import ConfigError, ModelLoadError, ModelPathError
from soup_engine.model import location
from soup_engine.model.demo import DEMO_MODEL_NAME, demo_adapters
from soup_engine.model.location import find_model
from tests.support.adapter_folders import save_adapter


def quiet(_stage: str, _share: float | None) -> None:
    pass


def refusal(path: str | Path, base: str | Path | None = None) -> str:
    with pytest.raises(ModelPathError) as refused:
        find_model(ModelConfig(path=str(path), base=None if base is None else str(base)), quiet)
    return refused.value.message


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "is_offline_mode", lambda: True)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_a_model_and_an_adapter_with_its_base(model: Path, tmp_path: Path) -> None:
    found = find_model(ModelConfig(path=str(model)), quiet)
    assert (found.base, found.name, found.adapter) == (str(model), str(model), None)
    adapter = save_adapter(tmp_path / "adapter")
    found = find_model(ModelConfig(path=str(adapter), base=str(model)), quiet)
    assert (found.base, found.adapter) == (str(model), str(adapter))
    with pytest.raises(ConfigError, match="--base goes with a LoRA adapter"):
        find_model(ModelConfig(path=str(model), base=str(model)), quiet)


def test_what_is_not_there_is_said_in_one_sentence(model: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert refusal(empty).endswith("has no config.json, so it is not a transformers model.")
    assert "is a file" in refusal(model / "config.json")
    for path in ("./none", "/none", "~none", "a/b/c", "x" * 5000, "a\0b"):
        assert refusal(path).startswith("There is no folder ")
    assert refusal("org/none") == (
        "There is no folder org/none, and the hub is not asked (HF_HUB_OFFLINE)."
    )


def test_a_base_that_an_adapter_names_is_said_to_be_that(tmp_path: Path) -> None:
    adapter = save_adapter(tmp_path / "adapter")
    assert refusal(adapter) == (
        "There is no folder '/srv/secret/base'. adapter_config.json of "
        f"{adapter} names it as the base: say with --base where it is."
    )
    assert refusal(adapter, "/none") == "There is no folder '/none'."
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": None})
    )
    with pytest.raises(ModelLoadError, match="names no base model; give it with --base"):
        find_model(ModelConfig(path=str(adapter)), quiet)


def test_the_hub_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "is_offline_mode", lambda: False)
    monkeypatch.setattr(location, "hf_hub_url", lambda _name, _file: "http://127.0.0.1:1/x")
    assert refusal("org/none") == "There is no folder org/none, and the hub cannot be reached."


def test_the_cache_of_the_hub_is_looked_into(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cached = str(model / "config.json")
    monkeypatch.setattr(location, "try_to_load_from_cache", lambda _name, _file: cached)
    assert find_model(ModelConfig(path="org/cached"), quiet).base == str(model)


def test_the_base_of_the_demo_adapters_is_the_demo_model(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "ensure_demo_model", lambda _progress: model)
    monkeypatch.setattr(location, "demo_model_path", lambda: model)
    for folder in demo_adapters().values():
        found = find_model(ModelConfig(path=str(folder)), quiet)
        assert (found.base, found.name) == (str(model), DEMO_MODEL_NAME)

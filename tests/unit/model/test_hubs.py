"""Models from other hubs, by stand-ins for their libraries: no hub can be reached from a test.

The stand-ins take what ``snapshot_download`` of modelscope 1.40 and of openmind_hub 1.3 take.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from soup_engine.config import ModelConfig
from soup_engine.errors import ConfigError, MissingPackageError, ModelPathError
from soup_engine.model import hubs
from soup_engine.model.location import find_model
from tests.support.adapter_folders import save_adapter

Library = Callable[[str, str], None]

GIVES = """
import json
import sys
from pathlib import Path


def snapshot_download(model_id=None, *, allow_patterns=None, repo_id=None):
    folder = Path(__file__).with_name("cache")
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps([model_id or repo_id, allow_patterns]))
    return str(folder)
"""
REFUSES = """
def snapshot_download(model_id=None, *, allow_patterns=None):
    raise KeyError("404: nothing\\nhere")
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Library:
    def make(module: str, source: str) -> None:
        (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return make


def quiet(_stage: str, _share: float | None) -> None:
    pass


@pytest.mark.parametrize(
    ("hub", "module"), [("modelscope", "modelscope"), ("modelers", "openmind_hub")]
)
def test_the_hubs_own_library_fetches(hub: str, module: str, library: Library) -> None:
    library(module, GIVES)
    found = find_model(ModelConfig(path="org/model", hub=hub), quiet)
    asked, patterns = json.loads((Path(found.base) / "config.json").read_text())
    assert (asked, found.name) == ("org/model", "org/model")
    assert "*.safetensors" in patterns
    assert "*.py" not in patterns
    find_model(ModelConfig(path="org/model", hub=hub, trust_remote_code=True), quiet)
    assert "*.py" in json.loads((Path(found.base) / "config.json").read_text())[1]


def test_the_base_of_an_adapter_comes_from_there_too(library: Library, tmp_path: Path) -> None:
    library("modelscope", GIVES)
    adapter = save_adapter(tmp_path / "adapter")
    found = find_model(ModelConfig(path=str(adapter), base="org/base", hub="modelscope"), quiet)
    assert (Path(found.base).name, found.name) == ("cache", "org/base")


def test_what_the_library_says_is_passed_on(library: Library) -> None:
    library("openmind_hub", REFUSES)
    with pytest.raises(ModelPathError, match="Modelers gives no model of that name: '404: nothing"):
        find_model(ModelConfig(path="org/model", hub="modelers"), quiet)


def test_a_missing_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "find_spec", lambda _module: None)
    with pytest.raises(MissingPackageError, match="python -m pip install openmind_hub"):
        find_model(ModelConfig(path="org/model", hub="modelers"), quiet)


def test_a_folder_needs_no_hub(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert find_model(ModelConfig(path=str(tmp_path), hub="modelers"), quiet).base == str(tmp_path)


def test_other_hubs_are_refused() -> None:
    with pytest.raises(ConfigError, match="--hub is one of hf, modelscope, modelers, not 'github'"):
        ModelConfig(path="org/model", hub="github")

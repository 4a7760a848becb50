from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from soup_engine.config import ModelConfig
from soup_engine.model.loader import LoadedModel, load_model
from tests.support.equality import Reference


@pytest.fixture(scope="session")
def loaded(tiny_model: Callable[[str], Path]) -> Callable[[str], LoadedModel]:
    """A tiny model of a family, loaded as the program loads it, in fp32 on the CPU."""
    made: dict[str, LoadedModel] = {}

    def load(family: str) -> LoadedModel:
        if family not in made:
            config = ModelConfig(path=str(tiny_model(family)), dtype="float32", device="cpu")
            made[family] = load_model(config, lambda _stage, _share: None)
        return replace(made[family])

    return load


@pytest.fixture(scope="session")
def reference(tiny_model: Callable[[str], Path]) -> Callable[[str], Reference]:
    made: dict[str, Reference] = {}

    def load(family: str) -> Reference:
        if family not in made:
            made[family] = Reference(tiny_model(family))
        return made[family]

    return load

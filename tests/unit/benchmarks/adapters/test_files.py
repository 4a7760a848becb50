"""Adapters made for load are ones that the program's own reader accepts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.adapters.files import (
    SHAPES,
    LlamaSizes,
    drop_from_page_cache,
    make_adapters,
)
from soup_engine.adapters.peft_format import read_adapter


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_sizes_are_those_of_grouped_heads(model: Path) -> None:
    sizes = LlamaSizes.of(model)
    assert sizes.features("q_proj") == (48, 48)
    assert sizes.features("v_proj") == (48, 24)
    assert sizes.features("down_proj") == (96, 48)


@pytest.mark.parametrize("shape", SHAPES)
def test_adapters_of_a_shape_are_read_and_all_different(
    model: Path, tmp_path: Path, shape: str
) -> None:
    made = make_adapters(tmp_path / "made", model, shape, 3)
    assert list(made) == ["a0", "a1", "a2"]
    specs = [read_adapter(folder) for folder in made.values()]
    assert {spec.target_modules for spec in specs} == {tuple(sorted(SHAPES[shape]))}
    assert {len(spec.modules) for spec in specs} == {2 * len(SHAPES[shape])}
    assert {spec.max_rank for spec in specs} == {8}
    assert len({spec.content_hash for spec in specs}) == 3


def test_adapters_are_the_same_every_time_and_others_under_another_prefix(
    model: Path, tmp_path: Path
) -> None:
    hashes = [
        read_adapter(
            next(
                iter(make_adapters(tmp_path / folder, model, "default", 1, prefix=prefix).values())
            )
        ).content_hash
        for folder, prefix in (("one", "a"), ("two", "a"), ("three", "b"))
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_dropping_from_the_page_cache_loses_nothing(model: Path, tmp_path: Path) -> None:
    (folder,) = make_adapters(tmp_path / "made", model, "default", 1).values()
    before = read_adapter(folder).content_hash
    drop_from_page_cache(folder)
    assert read_adapter(folder).content_hash == before

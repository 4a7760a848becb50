"""What the files of a model say, beside what is known once it is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from soup_engine.config import ModelConfig
from soup_engine.errors import UnsupportedModelError
from soup_engine.model.loader import load_model
from soup_engine.model.model_files import describe_model


def silent(_stage: str, _share: float | None) -> None:
    pass


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_it_is_what_the_loaded_model_says(tiny_model: Callable[[str], Path], family: str) -> None:
    config = ModelConfig(path=str(tiny_model(family)), dtype="float32", device="cpu")
    described, loaded = describe_model(config, silent), load_model(config, silent)
    assert described.base_modules == loaded.base_modules
    assert described.eos_token_ids == loaded.eos_token_ids
    assert described.num_parameters == loaded.num_parameters
    assert described.vocab_size == loaded.model.vocab_size
    assert described.context_limit == loaded.context_limit
    assert described.architecture == loaded.model.architecture
    assert described.tokenizer.get_vocab() == loaded.tokenizer.get_vocab()
    assert not described.quantized


def test_a_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(UnsupportedModelError, match="encoder-decoder"):
        describe_model(ModelConfig(path=str(tmp_path)), silent)

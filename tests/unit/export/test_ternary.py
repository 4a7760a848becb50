from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from soup_engine.errors import ExportUnsupportedError
from soup_engine.export.progress import Silent
from soup_engine.export.source import Source
from soup_engine.export.ternary import check_ternary


class Notes(Silent):
    def __init__(self) -> None:
        self.sentences: list[str] = []

    def note(self, sentence: str) -> None:
        self.sentences.append(sentence)


def test_ternary_types_are_for_models_trained_so(plain_model: Path) -> None:
    notes = Notes()
    source = Source(model=plain_model)
    with pytest.raises(ExportUnsupportedError, match="insist with --force"):
        check_ternary(source, force=False, report=notes)
    assert notes.sentences == []
    check_ternary(source, force=True, report=notes)
    assert notes.sentences == ["The model was not trained to be ternary: expect nonsense."]


def test_weights_of_three_values_are_recognised(plain_model: Path) -> None:
    path = plain_model / "model.safetensors"
    tensors = load_file(path)
    for name, values in tensors.items():
        if name.endswith("proj.weight"):
            tensors[name] = (0.02 * np.sign(np.round(values))).astype(np.float32)
    save_file(tensors, path)
    notes = Notes()
    check_ternary(Source(model=plain_model), force=False, report=notes)
    assert notes.sentences == []

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def gguf_model(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """A tiny Llama whose tokenizer splits text in a way that llama.cpp has a name for."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["pre_tokenizer"]["use_regex"] = True
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder

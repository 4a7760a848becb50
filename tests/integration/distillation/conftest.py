from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from soup_engine.distillation.shrink import shrink
from soup_engine.prompt_file import PromptFile, read_prompt_file


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models are several times faster so, beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny_draft(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of the three layers of the tiny Llama."""
    folder = tmp_path_factory.mktemp("draft") / "small"
    shrink(str(tiny_model("llama")), folder, layers=2, keep=None)
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> PromptFile:
    path = tmp_path / "prompts.txt"
    lines = [f"number {number}: {chr(97 + number) * 3}\n" for number in range(20)]
    path.write_text("".join(lines), encoding="utf-8")
    return read_prompt_file(path)

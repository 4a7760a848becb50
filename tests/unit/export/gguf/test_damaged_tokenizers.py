"""Whatever stands in a tokenizer's files, it is used or refused with a sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from soup_engine.errors import ExportSourceError, SoupError
from soup_engine.export.gguf.vocabulary import read_vocabulary
from tests.support.tokenizers import save_tokenizer

JUNK: tuple[Any, ...] = (None, True, -1, 10**30, "", "x", "\ud800", [], [1], {}, {"type": 1})


def places(value: Any, path: tuple[Any, ...] = (), depth: int = 4) -> Iterator[tuple[Any, ...]]:
    """Keys that lead to what is in a JSON value; of long lists and objects the first few."""
    if path:
        yield path
    if depth and isinstance(value, dict):
        for key in list(value)[:20]:
            yield from places(value[key], (*path, key), depth - 1)
    elif depth and isinstance(value, list):
        for index in range(min(2, len(value))):
            yield from places(value[index], (*path, index), depth - 1)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2"])
@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
def test_no_tokenizer_is_an_accident(family: str, file: str, tmp_path: Path) -> None:
    size = save_tokenizer(family, tmp_path)
    whole = json.loads((tmp_path / file).read_text(encoding="utf-8"))
    tried = 0
    for path in places(whole):
        for junk in JUNK:
            broken = copy.deepcopy(whole)
            inner = broken
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = junk
            (tmp_path / file).write_text(json.dumps(broken))
            try:
                read_vocabulary(tmp_path, {}, size)
            except SoupError as error:
                assert error.message.endswith(".")
            tried += 1
    assert tried > len(JUNK)


@pytest.mark.parametrize("content", ['{"a": 1}', '{"model": 5}', '{"model": null}'])
def test_a_tokenizer_without_a_model_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ExportSourceError, match=r"tokenizer\.json describes no model"):
        read_vocabulary(tmp_path, {}, 10)

"""Where an adapter's own chat template is found, and what is no template."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from soup_engine.adapters.chat_template import MAX_TEMPLATE_BYTES, read_chat_template
from soup_engine.adapters.peft_format import read_adapter
from soup_engine.errors import AdapterInvalidError


def tokenizer_config(folder: Path, template: object) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))


def test_no_files_no_template(tmp_path: Path) -> None:
    assert read_chat_template(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert read_chat_template(tmp_path) is None


def test_the_file_of_its_own_wins(tmp_path: Path) -> None:
    tokenizer_config(tmp_path, "old")
    assert read_chat_template(tmp_path) == "old"
    (tmp_path / "chat_template.jinja").write_text("nëw")
    assert read_chat_template(tmp_path) == "nëw"


def test_of_several_the_default(tmp_path: Path) -> None:
    named = [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]
    tokenizer_config(tmp_path, named)
    assert read_chat_template(tmp_path) == "d"
    tokenizer_config(tmp_path, named[:1])
    assert read_chat_template(tmp_path) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", b"\xff"),
        ("chat_template.jinja", b"x" * (MAX_TEMPLATE_BYTES + 1)),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b'{"chat_template": [1]}'),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(AdapterInvalidError, match=name):
        read_chat_template(tmp_path)


def test_another_template_is_another_adapter(
    write_adapter: Callable[..., Path], tmp_path: Path
) -> None:
    plain = read_adapter(write_adapter(tmp_path / "plain"))
    folder = write_adapter(tmp_path / "own")
    assert read_adapter(folder).content_hash == plain.content_hash
    (folder / "chat_template.jinja").write_text("own")
    own = read_adapter(folder)
    assert own.content_hash != plain.content_hash
    assert own.weights_hash == plain.weights_hash
    assert (plain.chat_template, own.chat_template) == (None, "own")

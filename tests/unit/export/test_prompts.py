from __future__ import annotations

import json
from pathlib import Path

import pytest

from soup_engine.errors import ExportError
from soup_engine.export.verification.prompts import Prompt, fixed_prompts, read_prompts
from soup_engine.prompt_file import ChatMessage


def test_the_set_in_the_package_asks_and_scores() -> None:
    prompts = fixed_prompts()
    assert sum(prompt.scored for prompt in prompts) == 2
    assert sum(bool(prompt.messages) for prompt in prompts) == 10
    for prompt in prompts:
        assert Prompt.from_json(json.loads(json.dumps(prompt.to_json()))) == prompt


def test_lines_of_all_kinds(tmp_path: Path) -> None:
    file = tmp_path / "prompts"
    file.write_text(
        '{"prompt": "One\\u2028two?"}\r\n\n  What is "this"?  \n'
        '{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}',
        encoding="utf-8",
    )
    assert read_prompts(file) == (
        Prompt((ChatMessage("user", "One\u2028two?"),)),
        Prompt((ChatMessage("user", 'What is "this"?'),)),
        Prompt((ChatMessage("system", "s"), ChatMessage("user", "u"))),
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"prompt": ', "is not valid JSON"),
        ('{"prompt": 5}', "has no text"),
        ('{"prompt": " "}', "has no text"),
        ('{"text": "x"}', "either a prompt or messages"),
        ('{"prompt": "x", "messages": []}', "either a prompt or messages"),
        ('{"messages": []}', "a list of messages"),
        ('{"messages": [{"role": "tool", "content": "x"}]}', "role"),
        ('{"messages": [{"role": "user"}]}', "has no text"),
        ("[1]", "either a prompt or messages"),
        ("x" * 8_001, "longer than"),
    ],
)
def test_a_wrong_line_is_named_by_its_number(tmp_path: Path, line: str, why: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(f"fine\n\n{line}\n")
    with pytest.raises(ExportError, match=f"^Line 3 of prompts.jsonl .*{why}"):
        read_prompts(file)


def test_files_that_hold_no_prompts(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    (tmp_path / "many").write_text("x\n" * 201)
    for name, why in (
        ("empty", "holds no prompts"),
        ("bytes", "not valid UTF-8"),
        ("many", "more than 200"),
        ("none", "no such file"),
    ):
        with pytest.raises(ExportError, match=why):
            read_prompts(tmp_path / name)

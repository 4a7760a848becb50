from __future__ import annotations

import json
from pathlib import Path

import pytest

from soup_engine.errors import PromptFileError
from soup_engine.prompt_file import BadLine, ChatMessage, read_prompt_file


def write(folder: Path, *lines: str | bytes) -> Path:
    path = folder / "prompts.jsonl"
    path.write_bytes(b"".join((x if isinstance(x, bytes) else x.encode()) + b"\n" for x in lines))
    return path


def test_all_forms_of_a_line(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    path = write(
        tmp_path,
        "\ufeffplain text ",
        "",
        json.dumps({"prompt": "a\u2028b", "label": 3}),
        json.dumps({"messages": messages}),
        json.dumps({"messages": [*messages, {"role": "assistant", "content": "So."}]}),
    )
    read = read_prompt_file(path)
    assert read.bad_lines == ()
    assert [prompt.line for prompt in read.prompts] == [1, 3, 4, 5]
    first, second, third, fourth = read.prompts
    assert first.messages == (ChatMessage("user", "plain text"),)
    assert second.messages == (ChatMessage("user", "a\u2028b"),)
    assert third.as_chat() == messages
    # The answer that a log of traffic holds is not part of what is asked.
    assert fourth.messages == third.messages


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": ', "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("{}", "must have either a prompt or messages"),
        ('["text"]', "must have either a prompt or messages"),
        ('{"prompt": "x", "messages": []}', "must have either a prompt or messages"),
        ('{"prompt": " "}', "has no text where some is needed"),
        ('{"prompt": 3}', "has no text where some is needed"),
        ('{"prompt": "\\ud800"}', "holds a lone surrogate, which is no character"),
        ('{"messages": []}', "must have a list of messages"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "has no message to answer"),
        (
            '{"messages": [{"role": "tool", "content": "x"}]}',
            "has a message whose role is not system, user or assistant",
        ),
        (b"\xff\xfe", "is not valid UTF-8"),
        ("x" * 1_000_001, "is longer than 1,000,000 bytes"),
    ],
)
def test_a_bad_line_is_named_and_passed_over(
    line: str | bytes, reason: str, tmp_path: Path
) -> None:
    read = read_prompt_file(write(tmp_path, "good", line, "good, too"))
    assert [prompt.line for prompt in read.prompts] == [1, 3]
    assert read.bad_lines == (BadLine(2, reason),)


def test_what_holds_nothing_usable_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PromptFileError, match=r"prompts\.jsonl holds no prompts\.$"):
        read_prompt_file(write(tmp_path, "", "  "))
    with pytest.raises(PromptFileError, match=r"can be used: line 1 is not valid JSON\.$"):
        read_prompt_file(write(tmp_path, "{", "{}"))
    with pytest.raises(PromptFileError, match="no such file"):
        read_prompt_file(tmp_path / "none")
    with pytest.raises(PromptFileError, match="is a directory"):
        read_prompt_file(tmp_path)
    with pytest.raises(PromptFileError, match="null byte"):
        read_prompt_file(Path("a\0b"))

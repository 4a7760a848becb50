"""``soup draft`` where no model is needed: wrong calls, and the list of drafts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from soup_engine.draft.registry import default_registry, register_draft
from soup_tui.cli.draft_prompts import read_prompts
from soup_tui.cli.main import run


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("a prompt\n")


MEASURE = ["draft", "measure", "--target", "t", "--prompts", "prompts.txt"]
DISTILL = ["draft", "distill", "-t", "t", "--draft-base", "b", "--data", "prompts.txt", "-o", "out"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (MEASURE, "Give either --draft or --ngram"),
        ([*MEASURE, "-d", "x", "--ngram", "2"], "Give either --draft or --ngram"),
        ([*MEASURE, "--ngram", "0"], "--ngram goes from 1 to 16 tokens, not 0."),
        ([*MEASURE, "-d", "http://x/y"], "not an address"),
        ([*MEASURE, "-d", "x", "--spec-tokens", "0"], "--spec-tokens goes from 1 to 15, not 0."),
        ([*MEASURE, "-d", "x", "--rounds", "0"], "--rounds is at least 1."),
        ([*MEASURE, "-d", "x", "--min-acceptance", "60"], "--min-acceptance goes from 0 to 1"),
        ([*MEASURE, "-d", "x", "--adapters", "a"], "--adapters takes one NAME=PATH or more"),
        ([*MEASURE, "-d", "x", "--dtype", "int8"], "--dtype is one of"),
        ([*MEASURE, "-d", "x", "--device", "abacus"], "device is cuda"),
        (["draft", "measure", "--target", "t"], "--prompts"),
        ([*DISTILL, "--epochs", "0"], "--epochs is at least 1, not 0."),
        ([*DISTILL, "--dtype", "int8"], "--dtype is one of bfloat16"),
        ([*DISTILL, "--validation", "1"], "--validation is between 0 and 1, not 1."),
        (["draft", "shrink", "-t", "t", "-o", "o"], "Give either --layers or --keep"),
        (["draft", "shrink", "-t", "t", "-o", "o", "--keep", "1,x"], "numbers with commas"),
        (["draft", "shrink", "-t", "t", "-o", "o", "--layers", "x"], "--layers"),
    ],
)
def test_wrong_calls(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert printed.err.startswith("soup: ")
    assert {path.name for path in tmp_path.iterdir()} == {"prompts.txt"}


def test_a_file_of_prompts_that_cannot_be_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for command in (MEASURE, DISTILL):
        (tmp_path / "prompts.txt").write_text("{\n" * 9)
        assert run([*command, *(["-d", "x"] if command is MEASURE else [])]) == 1
        assert "line 1 is not valid JSON" in capsys.readouterr().err
    (tmp_path / "prompts.txt").unlink()
    assert run([*MEASURE, "-d", "x"]) == 1
    assert "no such file" in capsys.readouterr().err


def test_the_list_of_drafts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["draft", "list"]) == 0
    assert "No drafts are registered" in capsys.readouterr().out
    assert run(["draft", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    for name in ("target", "draft \x1b[31m"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(b"weights")
    draft = tmp_path / "draft \x1b[31m"
    register_draft(tmp_path / "target", draft, acceptance_before=0.03, acceptance_after=0.456)
    assert default_registry().is_relative_to(tmp_path)
    assert run(["draft", "list"]) == 0
    shown = capsys.readouterr().out
    assert "0.03" in shown
    assert "0.46" in shown
    assert "there" in shown
    assert "\x1b" not in shown
    assert run(["draft", "list", "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)
    assert pair["draft"] == str(draft)
    assert pair["target_path"] == str(tmp_path / "target")
    assert pair["acceptance_after"] == 0.456
    assert pair["there"] is True
    (draft / "model.safetensors").unlink()
    assert run(["draft", "list"]) == 0
    assert "gone" in capsys.readouterr().out
    assert run(["draft", "list", "--remove", "elsewhere"]) == 1
    assert "No draft is registered at elsewhere" in capsys.readouterr().err
    assert run(["draft", "list", "--remove", str(draft)]) == 0
    assert "No drafts are registered" in capsys.readouterr().out


def test_every_bad_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join([json.dumps({"prompt": "good"}), *["{"] * 7]), encoding="utf-8")
    assert len(read_prompts(path).bad_lines) == 7
    said = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in said[:5]] == ["2", "3", "4", "5", "6"]
    assert said[5:] == [f"soup: So are lines 7, 8: 7 lines of {path} are left out in all."]

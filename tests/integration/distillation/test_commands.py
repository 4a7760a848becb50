"""The commands as a shell sees them, over a tiny pair."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pexpect
import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = [sys.executable, "-c", "from soup_tui.cli.main import main; main()"]
Soup = Callable[..., subprocess.CompletedProcess[str]]
DISTILL = [
    *("--epochs", "8", "--batch-size", "4", "--learning-rate", "0.005"),
    *("--max-tokens", "24", "--max-length", "200", "--validation", "0.2"),
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name[:5] != "SOUP_"}
    own = {"XDG_DATA_HOME": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}
    return {**kept, **own, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def soup(tmp_path: Path, environment: dict[str, str]) -> Soup:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, "draft", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env=environment,
            check=False,
        )

    return run


@pytest.fixture
def target(tiny_model: Callable[[str], Path]) -> str:
    return str(tiny_model("llama"))


@pytest.fixture(autouse=True)
def prompt_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"prompt": f"number {number}"}) for number in range(20)]
    path.write_text("\n".join([*lines, "{"]), encoding="utf-8")
    return path


def test_from_a_target_to_a_registered_draft(soup: Soup, target: str, tmp_path: Path) -> None:
    made = soup("shrink", "--target", target, "--layers", "2", "-o", "small")
    assert made.returncode == 0, made.stderr
    assert "layers      0, 2 of 3\n" in made.stdout
    arguments = ("--target", target, "--draft-base", "small", "--data", "prompts.jsonl")
    taught = soup("distill", *arguments, "-o", "draft", *DISTILL)
    assert taught.returncode == 0, taught.stderr
    assert "line 21 of prompts.jsonl is not valid JSON; it is left out.\n" in taught.stderr
    assert "training ...\n" in taught.stderr
    assert "tokens/s" in taught.stderr
    assert "acceptance  0." in taught.stdout
    listed = json.loads(soup("list", "--json").stdout)
    assert [pair["draft"] for pair in listed] == [str(tmp_path / "draft")]
    measured = soup(
        *("measure", "--target", target, "--draft", "draft", "--prompts", "prompts.jsonl"),
        *("--rounds", "2", "--max-tokens", "24", "--max-prompts", "4", "--spec-tokens", "2"),
        *("--dtype", "float32", "--json"),
    )
    assert measured.returncode == 0, measured.stderr
    document = json.loads(measured.stdout)
    assert document["partial"] is False
    (pair,) = document["pairs"]
    assert pair["num_tokens"] == 2
    assert pair["speedup"]["rounds"] == 2
    assert "plain decoding" in pair["verdict"]
    assert "round 2 of 2" in measured.stderr


def interrupted(
    arguments: list[str], stage: str, environment: dict[str, str], folder: Path
) -> tuple[int, str, str]:
    """A command that gets a SIGINT when it shows a stage."""
    with subprocess.Popen(
        [*PROGRAM, "draft", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=environment,
    ) as child:
        assert child.stderr is not None
        seen = ""
        for line in child.stderr:
            seen += line
            if line.startswith(stage):
                break
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=60)
    return child.returncode, output, seen + errors


def test_an_interrupted_measurement_shows_what_it_has(
    target: str, environment: dict[str, str], tmp_path: Path
) -> None:
    code, output, errors = interrupted(
        [
            *("measure", "--target", target, "--draft", target, "--prompts", "prompts.jsonl"),
            *("--rounds", "500", "--max-tokens", "100", "--json", "--dtype", "float32"),
        ],
        "round 2 of",
        environment,
        tmp_path,
    )
    assert code == 130, errors
    document = json.loads(output)
    assert document["partial"] is True
    assert document["pairs"][0]["speedup"]["rounds"] >= 1


def test_an_interrupted_training_goes_on(
    soup: Soup, target: str, tiny_draft: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    arguments = [
        *("distill", "--target", target, "--draft-base", str(tiny_draft)),
        *("--data", "prompts.jsonl", "-o", "draft", *DISTILL, "--epochs", "20"),
    ]
    code, output, errors = interrupted(arguments, "training ...", environment, tmp_path)
    assert (code, output) == (130, "")
    assert errors.endswith(
        "soup: interrupted: what was learned is in draft.checkpoint; with --resume the command goes"
        " on.\n"
    )
    assert (tmp_path / "draft.checkpoint" / "training.safetensors").is_file()
    done = soup(*arguments, "--resume", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 20 * 4
    assert not (tmp_path / "draft.checkpoint").exists()


def test_a_bar_on_a_terminal_and_a_floor_that_is_missed(
    target: str, environment: dict[str, str], tmp_path: Path
) -> None:
    arguments = [
        *(*PROGRAM[1:], "draft", "measure", "--target", target, "--ngram", "3"),
        *("--prompts", "prompts.jsonl", "--rounds", "1", "--max-tokens", "24"),
        *("--max-prompts", "2", "--min-acceptance", "1"),
    ]
    child = pexpect.spawn(
        sys.executable,
        arguments,
        cwd=str(tmp_path),
        env={**environment, "TERM": "xterm-256color"},
        dimensions=(24, 120),
        timeout=60,
        encoding="utf-8",
    )
    child.expect(r"round 1 of 1, plain.*tokens/s")
    child.expect("times plain decoding with 5 drafted tokens a step")
    child.expect("soup: The acceptance of the base is below 1")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 2

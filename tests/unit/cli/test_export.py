"""``soup merge`` and its kin as a shell sees them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect
import pytest

from soup_tui.cli.export import default_output
from soup_tui.cli.llama import passed_environment
from tests.support.export_sources import save_plain_adapter, save_plain_model

ROOT = Path(__file__).parents[3]
PROGRAM = [sys.executable, "-c", "from soup_tui.cli.main import main; main()"]
Soup = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name[:5] != "SOUP_"}
    home = tmp_path / "home"
    own = {"XDG_CACHE_HOME": str(home / "cache"), "XDG_DATA_HOME": str(home / "data")}
    return {**kept, **own, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def soup(tmp_path: Path, environment: dict[str, str]) -> Soup:
    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
            env=environment | variables,
            check=False,
        )

    return run


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    base = save_plain_model(tmp_path / "base", seed=1)
    return save_plain_adapter(tmp_path / "adapter", base, seed=2)


@pytest.fixture
def large_adapter(tmp_path: Path) -> Path:
    base = save_plain_model(tmp_path / "large base", seed=1, rows=700_000)
    return save_plain_adapter(tmp_path / "large", base, seed=2)


def test_merge_and_what_it_prints(soup: Soup, adapter: Path, tmp_path: Path) -> None:
    arguments = ["merge", "--adapter", str(adapter), "-o", "merged", "--no-verify"]
    done = soup(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"result      {tmp_path}/merged",
        "verified    no",
        f"manifest    {tmp_path}/merged/soup_manifest.json",
    ]
    assert "merging ...\n" in done.stderr
    again = soup(*arguments)
    assert (again.returncode, again.stdout) == (1, "")
    assert "is there already" in again.stderr
    assert soup(*arguments, "--overwrite", "--dtype", "float16").returncode == 0
    manifest = json.loads((tmp_path / "merged" / "soup_manifest.json").read_text())
    assert manifest["quant"] == "float16"
    assert manifest["command"][:2] == ["soup", "merge"]


def test_a_line_of_json_for_each_event(soup: Soup, adapter: Path) -> None:
    done = soup("merge", "-a", str(adapter), "-o", "merged", "--no-verify", "--json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.stderr == ""
    assert events[0]["state"] == "queued"
    assert events[-1]["state"] == "succeeded"
    assert [event["sequence"] for event in events] == sorted({e["sequence"] for e in events})
    failed = soup("merge", "-a", "none", "-o", "x", "--no-verify", "--json")
    assert failed.returncode == 1
    assert json.loads(failed.stdout.splitlines()[-1])["error"] in failed.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_cancels_cleanly(
    number: int, large_adapter: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    before = set(tmp_path.iterdir())
    command = [*PROGRAM, "merge", "-a", str(large_adapter), "-o", "out/merged", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=environment
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if json.loads(line)["progress"]["bytes_done"]:
                break
        asked = time.monotonic()
        child.send_signal(number)
        _, errors = child.communicate(timeout=10)
        assert time.monotonic() - asked < 1.5
    assert child.returncode == 1
    assert errors.decode() == "soup: The export was cancelled; nothing of it is left.\n"
    assert set(tmp_path.iterdir()) - before <= {tmp_path / "home"}


def test_a_bar_on_a_terminal(
    large_adapter: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    arguments = [*PROGRAM[1:], "merge", "-a", str(large_adapter), "-o", "out", "--no-verify"]
    child = pexpect.spawn(
        sys.executable,
        arguments,
        cwd=str(tmp_path),
        env={**environment, "TERM": "xterm-256color"},
        dimensions=(24, 100),
        timeout=30,
    )
    child.expect(r"iB/s, [\d.]+ m?s left")
    child.expect("manifest ")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["export", "--model", "m", "--format", "zip"], "--format is one of gguf"),
        (["export", "--model", "m", "--quant", "q9"], "quant for gguf is one of"),
        (["export", "--model", "m", "--format", "bitnet", "--quant", "f16"], "leave quant out"),
        (["export", "--model", "m", "--deploy", "ollama"], "--deploy and --deploy-name"),
        (["export", "--model", "m", "--deploy", "x", "--deploy-name", "y"], "--deploy can be"),
        (
            ["export", "-m", "m", "-f", "onnx", "--deploy", "ollama", "--deploy-name", "y"],
            "Ollama takes GGUF",
        ),
        (["export", "--model", "m", "--max-kl", "-1"], "max_kl must be"),
        (["export"], "--model"),
        (["merge", "-a", "a", "-o", "b", "--dtype", "int8"], "--dtype is one of"),
        (["quantize", "m", "--to", "zip"], "--to is one of"),
        (["quantize", "m", "--bits", "7"], "--bits for gguf is one of"),
        (["deploy", "ollama"], "Give --model FILE and --name NAME"),
        (["deploy", "ollama", "--list", "--remove", "x"], "Give --model FILE"),
        (["deploy", "ollama", "--model", "x"], "--model and --name go together"),
        (["deploy", "ollama", "-m", "x", "-n", "y", "--template", "z"], "--template is one of"),
        (["deploy", "ollama", "-m", "x", "-n", "y", "-p", "z"], "--parameter is NAME=VALUE"),
        (["deploy", "ollama", "-m", "x", "-n", "../y"], "cannot be a model's name"),
        (["deploy", "ollama", "-m", "x", "-n", "y", "-p", "A B=1"], "cannot be a parameter"),
        (["export", "-m", "x", "--deploy", "ollama", "--deploy-name", "a b"], "a model's name"),
        (["export", "--model", ""], "a path cannot be empty"),
        (["merge", "-a", "x", "-o", " "], "a path cannot be empty"),
        (["llama", "bash", "-c", "id"], "The program is one of cli"),
    ],
)
def test_wrong_usage_is_exit_code_2(soup: Soup, arguments: list[str], sentence: str) -> None:
    done = soup(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_wrong_prompts_are_named_by_their_line(soup: Soup, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('one\n{"prompt": 1}\n')
    done = soup("export", "--model", "m", "--verify-prompts", "p.jsonl")
    assert done.returncode == 1
    assert "Line 2 of p.jsonl" in done.stderr


def test_quantize_prints_a_command_for_the_shell(soup: Soup, tmp_path: Path) -> None:
    model = "./it's a $(touch x) model"
    done = soup("quantize", model, "--bits", "4", "-o", "out dir/a.gguf")
    expected = ["soup", "export", "--model", model, "--format", "gguf", "--quant", "q4_k_m"]
    assert shlex.split(done.stdout) == [*expected, "--output", "out dir/a.gguf"]
    assert done.stdout.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "kind", "weights", "name"),
    [
        ("./my model", "gguf", None, "my model.f16.gguf"),
        ("/a/b", "gguf", "q8_0", "b.q8_0.gguf"),
        ("a", "gguf-lora", None, "a.f32.lora.gguf"),
        ("a", "onnx", None, "a-onnx"),
        ("a", "gptq", "int8", "a-gptq-int8"),
    ],
)
def test_results_are_named_after_the_model(
    model: str, kind: str, weights: str | None, name: str
) -> None:
    assert default_output(Path(model), kind, weights) == Path(name)


def test_programs_of_llama_cpp_get_a_chosen_environment(soup: Soup, tmp_path: Path) -> None:
    """Standing in for a program: a script that tells what it was given."""
    folder = tmp_path / "llama"
    folder.mkdir()
    program = folder / "llama-server"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n/usr/bin/env\nexit 7\n')
    program.chmod(0o755)
    secrets: dict[str, Any] = {"HF_TOKEN": "secret", "SOUP_API_KEY": "secret"}
    passed = {"LC_ALL": "C", "GGML_CUDA_P2P": "1", "OMP_NUM_THREADS": "2", "LLAMA_CPP_HOME": "x"}
    done = soup(
        *("llama", "server", "--help", "a b", "--", "-x"),
        **secrets,
        **passed,
        LLAMA_CPP_PATH=str(folder),
    )
    assert done.returncode == 7
    lines = done.stdout.splitlines()
    assert lines[:4] == ["--help", "a b", "--", "-x"]
    assert {f"{name}={value}" for name, value in passed.items()} <= set(lines)
    assert "secret" not in done.stdout
    assert passed_environment({"PATH": "p", "PYTHONPATH": "q", "LANG": "C"}) == {
        "PATH": "p",
        "LANG": "C",
    }
    missing = soup("llama", "mtmd-cli", PATH="/nowhere", HOME=str(tmp_path))
    assert missing.returncode == 1
    assert "cmake" in missing.stderr


def test_what_was_deployed(soup: Soup) -> None:
    assert soup("deploy", "ollama", "--list").stdout == "No models.\n"
    done = soup("deploy", "ollama", "--remove", "x")
    assert done.returncode == 1
    assert "No model 'x' was deployed by soup" in done.stderr

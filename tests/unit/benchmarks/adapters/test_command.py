"""The command against real server processes that stream made-up answers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import command_line
from benchmarks.adapters import command
from benchmarks.fleet import Start

MakeStart = Callable[..., Start]
CONFIG = {
    "num_hidden_layers": 1,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
}


@pytest.fixture
def model(model_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture
def run(
    streaming_server: MakeStart,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[..., int]:
    servers = {name: streaming_server(name).server for name in ("soup", "vllm")}
    monkeypatch.setattr(command_line, "SERVERS", servers)
    monkeypatch.setattr(command, "LOGS", tmp_path / "logs")
    monkeypatch.setattr(command, "RESULTS", tmp_path)

    def run_it(*arguments: str) -> int:
        environments = [f"--environment={name}={Path(sys.prefix)}" for name in servers]
        return command.main([*arguments, "--quick", "--model", str(model), *environments])

    return run_it


def test_throughput_of_each_shape_is_printed_and_written(
    run: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("throughput") == 0
    printed = capsys.readouterr().out
    assert "### throughput, default, bfloat16" in printed
    assert "16 streams on 8 adapters ÷ vllm's, all-linear, bfloat16" in printed
    written = json.loads((tmp_path / "adapters-throughput.json").read_text())
    (default, _) = written["measured"]
    assert list(default["settings"]["adapters"] or {}) == []
    cells = default["outcome"]["data"]
    assert [(cell["server"], cell["load"]) for cell in cells] == [
        ("soup", 0), ("soup", 8), ("vllm", 0), ("vllm", 8),
    ]  # fmt: skip
    assert not list(tmp_path.glob("adapters-*/")), "the adapters were left behind"


def test_a_flood_is_measured_without_and_with(
    run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("flood", "--cell-seconds", "0.5") == 0
    printed = capsys.readouterr().out
    assert "| 10 times the others' |" in printed
    assert "TTFT p95 of others beside one adapter at 10 times their rate" in printed


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--shape", "round"], "'round' is none of"),
        (["--servers", "soup-cli"], "'soup-cli' is none of"),
        (["sideways"], "invalid choice"),
        (["--registered", "0"], "above 0"),
    ],
)
def test_wrong_usage_is_said_and_gives_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ending:
        command.main(arguments)
    assert ending.value.code == 2
    assert reason in capsys.readouterr().err

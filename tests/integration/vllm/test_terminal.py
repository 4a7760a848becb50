"""The workbench over vLLM: its screen is its own, and an engine that died is offered again."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
PROGRAM = "from soup_tui.cli.main import main; main()"
START_S = 120.0
OPTIONS = "--demo --backend vllm --dtype float32 --kv-cache-memory 1GiB --max-model-len 1024"
THEIRS = ("Triton", "libtcmalloc", "vllm.", "NUMA", "EngineCore")
"""What vLLM and its libraries write."""


@pytest.fixture(params=[""])
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The workbench, with further options if any."""
    from tests.support.terminals import Terminal

    arguments = ["tui", "--port", "0", *OPTIONS.split(), *request.param.split()]
    terminal = Terminal(PROGRAM, arguments, tmp_path, size=(140, 40), PYTHONPATH=str(ROOT))
    yield terminal
    terminal.close()
    for path in (tmp_path / "runtime/soup").glob("*.json"):
        os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)


def core_of(process_id: int) -> int | None:
    """The engine's process below the application's."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        name, _, rest = path.read_text().rpartition(") ")
        if "VLLM::EngineCor" in name and int(rest.split()[1]) == process_id:
            return int(path.parent.name)
    return None


def killed_core(terminal: Any, tmp_path: Path) -> tuple[int, int]:
    """The application and the engine's process, which is there no more."""
    terminal.wait_for("ready", START_S)
    (announced,) = (tmp_path / "runtime/soup").glob("*.json")
    application = json.loads(announced.read_text())["pid"]
    core = core_of(application)
    assert core is not None
    os.kill(core, signal.SIGKILL)
    return application, core


def test_the_screen_stays_clean_and_offers_a_restart(terminal: Any, tmp_path: Path) -> None:
    assert "vllm" in terminal.wait_for("up to 256 rows", START_S)
    killed_core(terminal, tmp_path)
    terminal.wait_for("The engine has died; the log says why: r starts it again.")
    terminal.child.send("8")
    terminal.wait_for("the engine died")
    terminal.child.send("1r")
    terminal.wait_for("Serve with these settings")
    terminal.child.send("\r")
    terminal.wait_for("No requests in flight", START_S)
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        terminal.read(0.2)
    log = terminal.shown
    assert not [word for word in THEIRS if word in log]


@pytest.mark.parametrize("terminal", ["--restart on-failure"], indirect=True)
def test_an_engine_that_is_being_started_again_keeps_nobody_from_leaving(
    terminal: Any, tmp_path: Path
) -> None:
    application, dead = killed_core(terminal, tmp_path)
    terminal.wait_for("The engine has died; the log says why; it is being started again.")
    deadline = time.monotonic() + 30
    while core_of(application) in (None, dead):
        assert time.monotonic() < deadline
        terminal.read(0.1)
    terminal.child.send("q")
    terminal.child.expect(pexpect.EOF, timeout=30)
    terminal.child.close()
    assert terminal.child.exitstatus == 0
    assert core_of(application) is None
    assert "resource_tracker" not in terminal.child.before

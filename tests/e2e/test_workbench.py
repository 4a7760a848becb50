"""``soup tui --demo`` as a user has it: the real model, a real terminal, one start for all."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.terminals import Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PROGRAM = "from soup_tui.cli.main import main; main()"
START_S = 240.0
FRANCE = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def terminal(home: Path) -> Iterator[Terminal]:
    """The workbench, serving; its tests go on where the one before ended."""
    terminal = Terminal(PROGRAM, ["tui", "--demo", "--port", "0"], home, size=(120, 40))
    terminal.wait_for("● ready", START_S)
    yield terminal
    terminal.close()
    if (server := announced(home)) is not None:
        os.kill(server["pid"], signal.SIGKILL)


def announced(home: Path) -> dict[str, Any] | None:
    for path in (home / "runtime/soup").glob("*.json"):
        found: dict[str, Any] = json.loads(path.read_text())
        return found
    return None


def until(terminal: Terminal, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, terminal.shown
        terminal.read(0.1)


@pytest.fixture
def http(terminal: Terminal, home: Path) -> Iterator[httpx.Client]:
    server = announced(home)
    assert server is not None, terminal.shown
    with httpx.Client(base_url=server["address"], timeout=60) as client:
        yield client


def answer(http: httpx.Client) -> str:
    body = FRANCE | {"temperature": 0, "adapter": "SmolLM2-135M-Instruct"}
    answered = http.post("/v1/chat/completions", json=body).raise_for_status().json()
    return str(answered["choices"][0]["message"]["content"])


def test_it_answers(http: httpx.Client) -> None:
    assert "Paris" in answer(http)


def complete_answers(http: httpx.Client) -> int:
    """A sampled answer may as well go on to its greatest length."""
    ended = http.get("/metrics").json()["answers_finished_total"]
    return int(ended.get("stop", 0) + ended.get("length", 0))


def test_a_chat_streams(terminal: Terminal, http: httpx.Client) -> None:
    before = complete_answers(http)
    terminal.child.send("6")
    terminal.wait_for("Chat")
    terminal.child.send("What is the capital of France?\r")
    terminal.wait_for("TTFT")  # beside the answer, which is a sampled one
    until(terminal, lambda: complete_answers(http) > before)
    terminal.child.send("\x1b")
    terminal.wait_for("i type")


def test_an_adapter_is_swapped_while_traffic_runs(terminal: Terminal, http: httpx.Client) -> None:
    terminal.child.send("7")
    terminal.wait_for("start/stop")
    terminal.child.send("g")
    until(terminal, lambda: http.get("/metrics").json()["active_requests"] > 0)
    terminal.child.send("3")
    terminal.wait_for("pirate")
    assert http.get("/v1/adapters").json()["active"] is None
    terminal.child.send("\x1b[B")  # down, from the base to the first adapter
    until(terminal, lambda: any("▸" in line and "json" in line for line in terminal.lines))
    terminal.child.send("\r")
    until(terminal, lambda: http.get("/v1/adapters").json()["active"] == "json")
    terminal.child.send("0")
    until(terminal, lambda: http.get("/v1/adapters").json()["active"] is None)
    terminal.child.send("7")
    terminal.wait_for("start/stop")
    terminal.child.send("g")
    until(terminal, lambda: http.get("/metrics").json()["active_requests"] == 0)
    assert http.get("/metrics").json()["answers_finished_total"]["error"] == 0


def test_it_takes_any_size(terminal: Terminal, http: httpx.Client) -> None:
    for size in ((1, 1), (200, 50), (120, 40)):
        terminal.resize(*size)
        terminal.read(0.5)
    terminal.child.send("1")
    terminal.wait_for("● ready")
    assert "Paris" in answer(http)


def test_the_server_survives_its_terminal_and_is_found_again(
    terminal: Terminal, http: httpx.Client, home: Path
) -> None:
    terminal.hang_up()
    until_left(home)
    assert "Paris" in answer(http)

    attached = Terminal(PROGRAM, ["tui", "--attach"], home, size=(120, 40))
    attached.wait_for("● ready")
    attached.child.send("q")
    assert attached.end()[0] == 0
    assert "Paris" in answer(http)

    server = announced(home)
    assert server is not None
    os.kill(server["pid"], signal.SIGTERM)
    deadline = time.monotonic() + 30
    while announced(home) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def until_left(home: Path) -> None:
    deadline = time.monotonic() + 30
    while (server := announced(home)) is None or server["log_file"] is None:
        assert time.monotonic() < deadline
        time.sleep(0.1)

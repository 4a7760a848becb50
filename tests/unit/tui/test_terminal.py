"""``soup tui`` in a terminal of its own, over a scripted engine."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from soup_tui.running_servers import process_start
from tests.support.terminals import Terminal

PROGRAM = """
import os, sys, time
from soup_engine.backends.fake import FakeBackend
from soup_engine.backends.fake_script import FakeScript
from soup_engine.errors import CannotRunError
from soup_engine.runtime import Runtime
from soup_tui.cli import main, tui

def open_it(settings, on_progress):
    on_progress("Loading weights", 0.5)
    time.sleep(float(os.environ.get("LOADING_S", "0")))
    if settings.model == "/nowhere":
        raise CannotRunError("There is no model at /nowhere.")
    runtime = Runtime(FakeBackend(FakeScript(step_s=0.02)), settings.server_config())
    runtime.start(on_progress)
    return runtime

tui.open_runtime = open_it
sys.exit(main.run(sys.argv[1:]))
"""
SERVE = ("tui", "--model", "fake", "--port", "0")
OpenTerminal = Callable[..., Terminal]


@pytest.fixture
def open_terminal(tmp_path: Path) -> Iterator[OpenTerminal]:
    opened: list[Terminal] = []

    def open_one(*arguments: str, **options: Any) -> Terminal:
        opened.append(Terminal(PROGRAM, arguments, tmp_path, **options))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.close()
    for server in announced(tmp_path):
        if process_start(server["pid"]) == server["process_started"]:
            os.kill(server["pid"], signal.SIGKILL)


def announced(home: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (home / "runtime/soup").glob("*.json")]


def until_announced(home: Path, **members: Any) -> dict[str, Any]:
    """The server once its file says this; a value of ``...`` is anything but nothing."""
    deadline = time.monotonic() + 15
    while True:
        for server in announced(home):
            found = {name: server[name] for name in members}
            if all(found[name] if v is ... else found[name] == v for name, v in members.items()):
                return server
        assert time.monotonic() < deadline, announced(home)
        time.sleep(0.02)


def until_gone(home: Path) -> None:
    deadline = time.monotonic() + 15
    while announced(home):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def healthy(address: str) -> bool:
    with urllib.request.urlopen(f"{address}/health", timeout=10) as answer:
        return bool(answer.status == 200)


def test_it_serves_while_it_shows_and_q_quits(open_terminal: OpenTerminal, tmp_path: Path) -> None:
    terminal = open_terminal(*SERVE)
    screen = terminal.wait_for("ready")
    server = until_announced(tmp_path, command="tui", log_file=None)
    assert server["address"] in screen
    assert healthy(server["address"])

    terminal.child.send("q")
    code, rest = terminal.end()
    assert code == 0
    assert "Traceback" not in rest
    assert announced(tmp_path) == []


@pytest.mark.parametrize("loading_s", ["0", "60"])
def test_a_signal_to_the_parent_quits(open_terminal: OpenTerminal, loading_s: str) -> None:
    terminal = open_terminal(*SERVE, LOADING_S=loading_s)
    terminal.wait_for("ready" if loading_s == "0" else "Loading weights")
    terminal.child.kill(signal.SIGTERM)
    code, rest = terminal.end()
    assert code == 0
    assert "Traceback" not in rest


def test_a_failure_stays_on_screen_and_is_said_again_in_the_shell(
    open_terminal: OpenTerminal,
) -> None:
    terminal = open_terminal("tui", "--model", "/nowhere", "--port", "0")
    terminal.wait_for("There is no model at /nowhere.")
    terminal.child.send("q")
    code, rest = terminal.end()
    assert code == 1
    assert "soup: There is no model at /nowhere." in rest
    assert "Traceback" not in rest


def test_a_closed_terminal_leaves_the_server_and_attach_comes_back(
    open_terminal: OpenTerminal, tmp_path: Path
) -> None:
    terminal = open_terminal(*SERVE)
    terminal.wait_for("ready")
    terminal.hang_up()
    server = until_announced(tmp_path, log_file=...)
    assert healthy(server["address"])

    second = open_terminal("tui", "--attach")
    second.wait_for("ready")
    second.wait_for(server["address"])
    second.child.send("q")
    code, rest = second.end()
    assert code == 0
    assert "Traceback" not in rest
    assert healthy(server["address"])

    # Without a model it is offered.
    third = open_terminal("tui")
    third.wait_for("Show which one?")
    third.child.sendline("1")
    third.wait_for("ready")
    third.hang_up()
    assert healthy(server["address"])

    os.kill(server["pid"], signal.SIGTERM)
    until_gone(tmp_path)
    log = Path(server["log_file"])
    assert log.stat().st_mode & 0o777 == 0o600
    assert "listening on" in log.read_text()
    while "Stopped after SIGTERM." not in log.read_text():
        time.sleep(0.02)
    assert "Traceback" not in log.read_text()


def test_a_terminal_that_closes_while_the_model_loads(
    open_terminal: OpenTerminal, tmp_path: Path
) -> None:
    terminal = open_terminal(*SERVE, LOADING_S="1.5")
    terminal.wait_for("Loading weights")
    terminal.hang_up()
    server = until_announced(tmp_path, log_file=...)
    assert healthy(server["address"])


def test_leaving_it_serving_gives_the_shell_back(
    open_terminal: OpenTerminal, tmp_path: Path
) -> None:
    terminal = open_terminal(*SERVE)
    terminal.wait_for("ready")
    server = until_announced(tmp_path, command="tui")
    body = {"messages": [{"role": "user", "content": "Say it. " * 40}], "ignore_eos": True}
    answers: list[httpx.Response] = []

    def ask() -> None:
        url = f"{server['address']}/v1/chat/completions"
        answers.append(httpx.post(url, json=body | {"max_tokens": 200}, timeout=60))

    asking = threading.Thread(target=ask)
    asking.start()
    terminal.wait_for("1 running")
    terminal.child.send("q")
    terminal.wait_for("1 request is in flight")
    terminal.child.send("l")
    code, rest = terminal.end()
    assert code == 0
    assert (
        f"fake-model goes on being served at {server['address']} (process {server['pid']}, log"
        in rest
    )
    assert "soup tui --attach comes back to it" in rest
    asking.join()
    assert answers[0].json()["usage"]["completion_tokens"] == 200


def test_a_killed_application_is_said_so(open_terminal: OpenTerminal, tmp_path: Path) -> None:
    terminal = open_terminal(*SERVE)
    terminal.wait_for("ready")
    os.kill(until_announced(tmp_path, command="tui")["pid"], signal.SIGKILL)
    code, rest = terminal.end()
    assert code == 1
    assert "The application was killed by SIGKILL, and its server with it." in rest


def test_it_is_suspended_and_brought_back(open_terminal: OpenTerminal, tmp_path: Path) -> None:
    """As by the shell's kill -TSTP and fg; nothing is answered meanwhile."""
    terminal = open_terminal(*SERVE)
    terminal.wait_for("ready")
    server = until_announced(tmp_path, command="tui")
    pids = (terminal.child.pid, server["pid"])
    terminal.child.kill(signal.SIGTSTP)
    deadline = time.monotonic() + 10
    while any(state_of(pid) != "T" for pid in pids):
        assert time.monotonic() < deadline
        terminal.read(0.05)
    before = terminal.raw
    assert before.rpartition("\x1b[?1049l")[1], "the shell has its own screen back"
    terminal.child.kill(signal.SIGCONT)
    while "\x1b[?1049h" not in terminal.raw[len(before) :]:
        assert time.monotonic() < deadline + 10
        terminal.read(0.05)
    assert healthy(server["address"])
    terminal.child.send("q")
    assert terminal.end()[0] == 0


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_any_size_and_back(open_terminal: OpenTerminal) -> None:
    terminal = open_terminal(*SERVE)
    terminal.wait_for("ready")
    for size in ((1, 1), (200, 50), (3, 40), (80, 24)):
        terminal.resize(*size)
        terminal.read(0.3)
    terminal.wait_for("ready")
    terminal.child.send("q")
    assert terminal.end()[0] == 0


@pytest.mark.parametrize(
    "variables",
    [{"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, {"LC_ALL": "C"}],
)
def test_a_terminal_without_unicode(open_terminal: OpenTerminal, variables: dict[str, str]) -> None:
    terminal = open_terminal(*SERVE, **variables)
    terminal.wait_for("* ready")
    terminal.child.send("2")
    terminal.wait_for("TTFT")
    terminal.child.send("q")
    code, rest = terminal.end()
    assert code == 0
    assert terminal.raw.isascii()
    assert "Traceback" not in rest


def test_no_colour(open_terminal: OpenTerminal) -> None:
    terminal = open_terminal(*SERVE, NO_COLOR="1")
    terminal.wait_for("ready")
    terminal.child.send("q")
    assert terminal.end()[0] == 0
    colours = ("\x1b[31", "\x1b[32", "\x1b[34", "\x1b[91", "\x1b[92")
    assert not any(colour in terminal.raw for colour in colours)

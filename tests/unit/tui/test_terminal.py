"""``soup tui`` in a terminal of its own, over a scripted engine."""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator

import pexpect
import pyte
import pytest

PROGRAM = """
import os, sys, time
from soup_engine.backends.fake import FakeBackend, FakeScript
from soup_engine.errors import CannotRunError
from soup_engine.runtime import Runtime
from soup_tui.cli import main, tui

def open_it(settings, on_progress):
    on_progress("Loading weights", 0.5)
    if os.environ["OUTCOME"] == "waits":
        time.sleep(60)
    if os.environ["OUTCOME"] == "fails":
        raise CannotRunError("There is no model at /nowhere.")
    runtime = Runtime(FakeBackend(FakeScript()), settings.server_config())
    runtime.start(on_progress)
    return runtime

tui.open_runtime = open_it
sys.exit(main.run(["tui", "--model", "fake", "--port", "0"]))
"""


class Terminal:
    """A child in a pseudo-terminal, and what its screen shows."""

    def __init__(self, outcome: str) -> None:
        self.child = pexpect.spawn(
            sys.executable,
            ["-c", PROGRAM],
            env=os.environ | {"TERM": "xterm-256color", "OUTCOME": outcome},
            dimensions=(24, 80),
            encoding="utf-8",
            timeout=20,
        )
        self._screen = pyte.Screen(80, 24)
        self._stream = pyte.Stream(self._screen)
        self.raw = ""

    def wait_for(self, text: str) -> str:
        """Read until the screen shows the text; the whole screen."""
        while text not in (shown := "\n".join(self._screen.display)):
            piece = self.child.read_nonblocking(65536, timeout=20)
            self.raw += piece
            self._stream.feed(piece)
        return shown

    def end(self) -> tuple[int | None, str]:
        """Exit code, and what was printed after the application gave the terminal back."""
        self.raw += self.child.read()
        self.child.wait()
        return self.child.exitstatus, self.raw.rpartition("\x1b[?1049l")[2]


@pytest.fixture
def open_terminal() -> Iterator[Callable[[str], Terminal]]:
    opened: list[Terminal] = []

    def open_one(outcome: str) -> Terminal:
        opened.append(Terminal(outcome))
        return opened[-1]

    yield open_one
    for terminal in opened:
        terminal.child.close(force=True)


def test_it_serves_while_it_shows_and_q_quits(open_terminal: Callable[[str], Terminal]) -> None:
    terminal = open_terminal("serves")
    screen = terminal.wait_for("ready")
    (address,) = (word for word in screen.split() if word.startswith("http") and "/v1" not in word)
    with urllib.request.urlopen(f"{address}/health") as answer:
        assert answer.status == 200

    terminal.child.send("q")
    code, rest = terminal.end()
    assert code == 0
    assert "Traceback" not in rest


@pytest.mark.parametrize("outcome", ["serves", "waits"])
def test_a_signal_quits(open_terminal: Callable[[str], Terminal], outcome: str) -> None:
    terminal = open_terminal(outcome)
    terminal.wait_for("ready" if outcome == "serves" else "Loading weights")
    terminal.child.kill(signal.SIGTERM)
    code, rest = terminal.end()
    assert code == 0
    assert "Traceback" not in rest


def test_a_failure_stays_on_screen_and_is_said_again_in_the_shell(
    open_terminal: Callable[[str], Terminal],
) -> None:
    terminal = open_terminal("fails")
    terminal.wait_for("There is no model at /nowhere.")
    terminal.child.send("q")
    code, rest = terminal.end()
    assert code == 1
    assert "soup: There is no model at /nowhere." in rest
    assert "Traceback" not in rest

"""What an idle application sends through a real pseudo-terminal, screen by screen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from soup_tui.actions import SCREENS
from tests.support.terminals import Terminal

PROGRAM = """
import dataclasses, itertools, sys
from soup_engine.backends.fake import FakeBackend
from soup_engine.runtime import Runtime
from soup_tui.cli import main, tui

class Trembling(FakeBackend):
    steps = itertools.cycle((0, 2, 1, 3))

    def snapshot(self):
        memory = (700 + next(self.steps)) << 20
        return dataclasses.replace(super().snapshot(), memory_rss_bytes=memory)

def open_it(settings, on_progress):
    runtime = Runtime(Trembling(), settings.server_config())
    runtime.start(on_progress)
    return runtime

tui.open_runtime = open_it
sys.exit(main.run(sys.argv[1:]))
"""
BYTES_PER_S = 50
SETTLE_S = 0.6
SECONDS = 2.1
"""Two looks at the engine."""
MARKS = {
    "serving": "x abort",
    "latency": "w window",
    "adapters": "space mark",
    "export": "e export",
    "drafts": "Accepted by position",
    "chat": "enter send",
    "traffic": "g start/stop",
    "logs": "f follow",
}
"""What only this screen shows."""


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(PROGRAM, ("tui", "--model", "fake", "--port", "0"), tmp_path, size=(120, 40))
    yield opened
    opened.close()


def received(terminal: Terminal, seconds: float) -> str:
    """What comes within so long."""
    before, deadline = len(terminal.raw), time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        terminal.read(left)
    return terminal.raw[before:]


def test_an_idle_screen_sends_next_to_nothing(terminal: Terminal) -> None:
    terminal.wait_for("ready")
    for number, name in enumerate(SCREENS, start=1):
        terminal.child.send(str(number))
        terminal.wait_for(MARKS[name])
        received(terminal, SETTLE_S)
        sent = received(terminal, SECONDS)
        per_s = len(sent.encode()) / SECONDS
        assert per_s <= BYTES_PER_S, f"{name}: {per_s:.0f} bytes/s, {sent!r}"
        if name == "chat":
            # Its digits would be typed into the message.
            terminal.child.send("\x1b")
            terminal.wait_for("i type")
    terminal.child.send("q")
    code, rest = terminal.end()
    assert code == 0
    assert "Traceback" not in rest

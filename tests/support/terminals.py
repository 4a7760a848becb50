"""``soup`` in a pseudo-terminal, and what its screen shows."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pexpect
import pyte

WAIT_S = 20.0


class Terminal:
    """A program in a terminal of its own, with folders of its own for what it leaves.

    Attributes:
        raw: all that it printed.
    """

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        home: Path,
        *,
        size: tuple[int, int] = (80, 24),
        **variables: str,
    ) -> None:
        folders = {f"XDG_{kind}": str(home / kind) for kind in ("STATE_HOME", "CONFIG_HOME")}
        runtime = home / "runtime"
        runtime.mkdir(mode=0o700, exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if name[:5] != "SOUP_"}
        width, height = size
        self.child = pexpect.spawn(
            sys.executable,
            ["-c", program, *arguments],
            env=kept
            | {"TERM": "xterm-256color", "XDG_RUNTIME_DIR": str(runtime)}
            | folders
            | variables,
            dimensions=(height, width),
            encoding="utf-8",
            codec_errors="replace",  # a program that is killed may end within a character
            timeout=WAIT_S,
        )
        self._screen = pyte.Screen(width, height)
        self._stream = pyte.Stream(self._screen)
        self.raw = ""

    @property
    def lines(self) -> list[str]:
        return list(self._screen.display)

    @property
    def shown(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str, seconds: float = WAIT_S) -> str:
        """Read until the screen shows the text; the whole screen."""
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            assert time.monotonic() < deadline, f"no {text!r} in\n{self.shown}"
            self.read(0.2)
        return self.shown

    def read(self, seconds: float) -> None:
        """Take what comes within so long."""
        try:
            piece = self.child.read_nonblocking(65536, timeout=seconds)
        except pexpect.TIMEOUT:
            return
        self.raw += piece
        self._stream.feed(piece)

    def resize(self, width: int, height: int) -> None:
        self.child.setwinsize(height, width)
        self._screen.resize(height, width)

    def end(self) -> tuple[int | None, str]:
        """Exit code, and what was printed after the application gave the terminal back."""
        self.raw += self.child.read()
        self.child.wait()
        return self.child.exitstatus, self.raw.rpartition("\x1b[?1049l")[2]

    def hang_up(self) -> None:
        """Close the terminal under the program, as a dropped connection does."""
        self.child.ptyproc.fileobj.close()

    def close(self) -> None:
        """End the program."""
        if not self.child.ptyproc.fileobj.closed:
            self.hang_up()
        self.child.ptyproc.terminate(force=True)

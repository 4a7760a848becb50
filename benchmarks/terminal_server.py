"""The workbench as a server under load: ``soup tui`` in a pseudo-terminal that somebody reads."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.client import Endpoint
from benchmarks.environments import ROOT
from benchmarks.errors import BenchmarkError
from benchmarks.fleet import RunningServer, free_port
from benchmarks.processes import process_state, process_tree, signal_tree
from benchmarks.servers import Server, Settings, Soup, server_variables

SIZE = (120, 40)
"""Columns and rows of the terminal."""
_STOP_S = 10.0
_REMOTE = ("SSH_CONNECTION", "SSH_TTY")
"""Variables that would make the application look half as often."""


class SoupTui(Soup):
    """This program with its application open."""

    name = "soup-tui"

    def command(self, python: Path, settings: Settings, port: int) -> list[str]:
        return [
            "tui" if part == "serve" else part for part in super().command(python, settings, port)
        ]


@dataclass(slots=True)
class Line:
    """The end of a pseudo-terminal that a person's terminal program would have.

    Attributes:
        received: bytes that the program wrote so far.
        tail: the last of them.
    """

    descriptor: int
    received: int = 0
    tail: bytes = b""
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._read, name="terminal", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self.descriptor, 65_536)
            except OSError:  # the program has ended, or the line was closed
                return
            if not piece:
                return
            self.received += len(piece)
            self.tail = (self.tail + piece)[-4096:]

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def close(self) -> None:
        """Once the program has ended, which ends the reading as well."""
        self._thread.join(timeout=5)
        os.close(self.descriptor)


@dataclass(slots=True)
class TerminalServer(RunningServer):
    """A server whose program runs in a terminal; ``line`` is the other end of it."""

    line: Line = field(kw_only=True)

    @classmethod
    def launch(
        cls, server: Server, settings: Settings, python: Path, log: Path, extra: Sequence[str] = ()
    ) -> TerminalServer:
        port = free_port()
        ours, programs = pty.openpty()
        columns, rows = SIZE
        fcntl.ioctl(programs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        # Where no preferences of the user's lie.
        folder = log.with_suffix(".config")
        folder.mkdir(parents=True, exist_ok=True)
        variables = {
            name: value for name, value in server_variables(server).items() if name not in _REMOTE
        }
        process = subprocess.Popen(
            [*server.command(python, settings, port), *extra],
            cwd=ROOT,
            env={**variables, "TERM": "xterm-256color", "XDG_CONFIG_HOME": str(folder)},
            stdin=programs,
            stdout=programs,
            stderr=programs,
            start_new_session=True,
        )
        os.close(programs)
        endpoint = Endpoint(port, server.body(settings))
        return cls(server, settings, process, endpoint, log, line=Line(ours))

    @property
    def received(self) -> int:
        """Bytes that the program wrote so far."""
        return self.line.received

    def press(self, keys: str) -> None:
        self.line.press(keys)

    def log_tail(self, lines: int = 15) -> str:
        return "\n".join(self.line.tail.decode(errors="replace").splitlines()[-lines:])

    def pause(self) -> None:
        """As Ctrl+Z does: a full-screen application that is stopped unawares begins to read and
        write a second time when it is continued.

        Raises:
            BenchmarkError: it does not stop.
        """
        os.kill(self.pid, signal.SIGTSTP)
        deadline = time.perf_counter() + _STOP_S
        while any(process_state(pid) != "T" for pid in process_tree(self.pid)):
            if time.perf_counter() > deadline:
                raise BenchmarkError(f"{self.name} does not stop on SIGTSTP.")
            time.sleep(0.01)
        self.paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.paused = False

    async def stop(self) -> None:
        """As any server; the child with the application is in no group of its parent's."""
        tree = process_tree(self.pid)
        await RunningServer.stop(self)
        for pid in tree:
            signal_tree(pid, signal.SIGKILL)
        self.line.close()

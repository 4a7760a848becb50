"""``soup tui`` in two processes: a parent that the shell waits for, and a child that does the work.

::

    shell ──► parent: has the terminal's signals; imports neither torch nor the application
                │  INT TERM HUP WINCH TSTP CONT        ▲  "gone on serving", or its end
                ▼                                      │
              child: application, engine and server, in a session of its own

A process with the engine's threads cannot put itself into the background. So the child stands
there from the start: no signal of the terminal reaches it but through the parent, a closed
terminal does not end it, and when it leaves the terminal the parent gives the shell back. Each
signal reaches the child once, whether it was sent to the parent alone or to all that the shell
started.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import termios
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

_PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGWINCH,
    signal.SIGTSTP,
)
_WATCHED = (*_PASSED_ON, signal.SIGCHLD)
_RESET = (
    "\x1b[?1000l\x1b[?1003l\x1b[?1006l\x1b[?1015l"  # the mouse is the terminal's again
    "\x1b[?2004l\x1b[?1004l\x1b[<u"  # no marks around pasted text, no focus or key events
    "\x1b[?7h\x1b[?25h\x1b[?1049l"  # long lines wrap, the cursor shows, the screen from before
)
"""Undoes what the application sets in a terminal (xterm's control sequences)."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The child ended, with this exit code; above 128 it was killed by a signal."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class GoneOn:
    """The child has left the terminal and goes on; ``sentence`` says how to reach it."""

    sentence: str


class ToParent:
    """The child's end of the line between the two.

    When the parent dies, the child gets SIGHUP, as for a closed terminal: with the parent the way
    back to the shell is gone.
    """

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        threading.Thread(target=self._watch, name="soup-parent", daemon=True).start()

    def go_on(self, sentence: str) -> None:
        """Let the parent say the sentence and give the shell back. Signals of the terminal no
        longer come."""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # Nobody may be there any more to be told.
        with suppress(OSError):
            self._line.sendall(json.dumps(sentence).encode() + b"\n")

    def _watch(self) -> None:
        with suppress(OSError):
            self._line.recv(1)
        os.kill(os.getpid(), signal.SIGHUP)


def fork_child() -> ToParent | Ended | GoneOn:
    """Go on twice: at once in a child, which gets ``ToParent``, and, when the child has ended or
    gone on without the terminal, in this process.

    Call it before there is any thread.
    """
    ours, childs = socket.socketpair()
    terminal = _terminal_settings()
    sys.stdout.flush()
    sys.stderr.flush()
    # What arrives before the parent listens waits for it; the child starts afresh.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    pid = os.fork()
    if pid == 0:
        os.setsid()
        ours.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return ToParent(childs)
    childs.close()
    with ours, _arriving_signals() as (arrived, wake_up):
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        outcome = _Child(pid, ours, arrived, wake_up).wait()
    if isinstance(outcome, Ended) and outcome.exit_code > 128:
        _restore_terminal(terminal)
    return outcome


@contextmanager
def _arriving_signals() -> Iterator[tuple[deque[int], socket.socket]]:
    """A queue of the signals that came, and a socket that wakes whoever waits for one."""
    arrived: deque[int] = deque()

    def handle(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    waker, wake_up = socket.socketpair()
    with waker, wake_up:
        waker.setblocking(False)
        wake_up.setblocking(False)
        old_waker = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        old_handlers = {number: signal.signal(number, handle) for number in _WATCHED}
        try:
            yield arrived, wake_up
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(old_waker)


class _Child:
    """The child as the parent sees it."""

    def __init__(
        self, pid: int, line: socket.socket, arrived: deque[int], wake_up: socket.socket
    ) -> None:
        self._pid = pid
        self._line = line
        self._arrived = arrived
        self._wake_up = wake_up
        self._heard = b""

    def wait(self) -> Ended | GoneOn:
        """Pass signals on until the child ends or goes on without the terminal."""
        listening = [self._wake_up, self._line]
        while True:
            readable, _, _ = select.select(listening, [], [])
            if self._wake_up in readable:
                self._wake_up.recv(4096)
            if self._line in readable:
                if not (heard := self._line.recv(4096)):
                    listening.remove(self._line)  # it is about to end
                self._heard += heard
                if self._heard.endswith(b"\n"):
                    return GoneOn(json.loads(self._heard))
            while self._arrived:
                number = self._arrived.popleft()
                if number != signal.SIGCHLD:
                    os.kill(self._pid, number)
                elif (exit_code := self._look()) is not None:
                    return Ended(exit_code)

    def _look(self) -> int | None:
        """The child's exit code once it has ended; stops with it when it was stopped."""
        pid, status = os.waitpid(self._pid, os.WNOHANG | os.WUNTRACED)
        if not pid:
            return None
        if os.WIFSTOPPED(status):
            self._stop_too()
            return None
        exit_code = os.waitstatus_to_exitcode(status)
        return exit_code if exit_code >= 0 else 128 - exit_code

    def _stop_too(self) -> None:
        """Let the shell see a stopped job, and go on when it is in the foreground again: the child
        would take the terminal from whoever has it."""
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)
            ending = {signal.SIGTERM, signal.SIGHUP}.intersection(self._arrived)
            if ending or _in_foreground():
                break
        while self._arrived:
            if (number := self._arrived.popleft()) != signal.SIGCHLD:
                os.kill(self._pid, number)
        os.kill(self._pid, signal.SIGCONT)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:
        return True  # no terminal, nobody to take it from


def _terminal_settings() -> list[Any] | None:
    try:
        return termios.tcgetattr(sys.stdin.fileno())
    except termios.error:
        return None


def _restore_terminal(settings: list[Any] | None) -> None:
    """As it was before a child that was killed while it had the terminal."""
    with suppress(OSError, termios.error):
        if settings is not None:
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, settings)
        print(_RESET, end="", flush=True)

"""``soup tui``: the terminal application over an engine in a process of its own, or over a server
that runs already."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from soup_engine.errors import CannotRunError, ConfigError
from soup_tui.cli.choosing import offered_server, server_to_attach
from soup_tui.cli.shutdown import leave_now, stop_runtime
from soup_tui.cli.signals import stop_signals
from soup_tui.cli.two_processes import Ended, GoneOn, ToParent, fork_child
from soup_tui.config import Settings
from soup_tui.launch import OpenRuntime, open_runtime
from soup_tui.running_servers import announcing
from soup_tui.service import Leave

if TYPE_CHECKING:
    from soup_engine.backends.base import ProgressCallback
    from soup_engine.runtime import Runtime

_KILLED = 128


def run(settings: Settings) -> int:
    """Open the terminal application and serve a model from it."""
    return tui(settings, open_runtime)


def tui(settings: Settings, open_it: OpenRuntime) -> int:
    """Run the application until it is left; 0 after a clean end.

    Raises:
        ConfigError: there is no terminal.
        SoupError: nothing could be served or attached to; the application showed it, the shell
            shows it again.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("soup tui needs a terminal; soup serve runs without one.")
    url = offered_server(settings) if settings.attach is None else server_to_attach(settings)
    if url is not None:
        from soup_tui.cli.attaching import attach

        return attach(url, settings)
    side = fork_child()
    return _serve(settings, open_it, side) if isinstance(side, ToParent) else _left(side)


def _left(side: Ended | GoneOn) -> int:
    """What the shell gets.

    Raises:
        CannotRunError: the child was killed.
    """
    if isinstance(side, GoneOn):
        # The terminal may be gone, which is why the child goes on without it.
        with contextlib.suppress(OSError):
            print(side.sentence, flush=True)
        return 0
    if side.exit_code > _KILLED:
        name = signal.Signals(side.exit_code - _KILLED).name
        raise CannotRunError(f"The application was killed by {name}, and its server with it.")
    return side.exit_code


def _serve(settings: Settings, open_it: OpenRuntime, parent: ToParent) -> int:
    """Run the application over an engine in this process; then stop what it served, or go on
    without the terminal."""
    from soup_tui.cli.application import run_application
    from soup_tui.cli.headless import go_on
    from soup_tui.local_service import local_opener

    logging.getLogger("soup_engine").setLevel(settings.log_level.upper())
    # The terminal is the application's: records are kept for its log view, not printed.
    logging.basicConfig(handlers=[logging.NullHandler()])
    opened = _LatestOpened(announcing(open_it, "tui"))
    leave = run_application(settings, local_opener(opened))
    runtime = opened.runtime(leave)
    if runtime is None or runtime.snapshot().state == "stopped":
        return 0
    if leave is Leave.SERVE:
        return go_on(runtime, parent, settings)
    events: SimpleQueue[Any] = SimpleQueue()
    with stop_signals(events):
        stop_runtime(runtime, events, 0.0 if leave is Leave.STOP else settings.drain_timeout)
    return 0


class _LatestOpened:
    """Opens runtimes and remembers the latest: the application may be gone when it is there."""

    def __init__(self, open_it: OpenRuntime) -> None:
        self._open_it = open_it
        self._latest: Future[Runtime] | None = None
        self._looked_at = True

    def __call__(self, settings: Settings, on_progress: ProgressCallback) -> Runtime:
        def report(stage: str, share: float | None) -> None:
            if self._looked_at:
                on_progress(stage, share)

        latest: Future[Runtime] = Future()
        self._latest = latest
        try:
            runtime = self._open_it(settings, report)
        except BaseException as error:
            latest.set_exception(error)
            raise
        latest.set_result(runtime)
        return runtime

    def runtime(self, leave: Leave) -> Runtime | None:
        """The latest, once the application was left; ``None`` if nothing was to be opened. One
        that is still being opened is waited for if it is to go on; else the process ends here.

        Raises:
            SoupError: it could not be opened.
        """
        self._looked_at = False
        if self._latest is None:
            return None
        if leave is not Leave.SERVE and not self._latest.done():
            leave_now()
        return self._latest.result()

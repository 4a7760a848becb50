"""How a server goes on when its application has left the terminal: its output goes to a log file,
and the shell is told where."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from soup_tui.cli.serve import serve_until_stopped, stderr_handler
from soup_tui.cli.shutdown import stop_runtime
from soup_tui.cli.signals import stop_signals
from soup_tui.cli.two_processes import ToParent
from soup_tui.config import Settings
from soup_tui.formatting import plain
from soup_tui.running_servers import announce, this_server

if TYPE_CHECKING:
    from soup_engine.runtime import Runtime

_KEPT_LOGS = 10
_INPUT, _OUTPUT, _ERRORS = 0, 1, 2


def go_on(runtime: Runtime, parent: ToParent, settings: Settings) -> int:
    """Serve without the terminal until SIGINT or SIGTERM; 0 after a clean end."""
    events: SimpleQueue[Any] = SimpleQueue()
    with stop_signals(events):
        log_file = leave_terminal()
        _log_to_stderr(runtime, settings)
        with contextlib.suppress(OSError):  # it was announced before, or could not be
            announce(this_server(runtime, "tui", log_file))
        parent.go_on(farewell(runtime, log_file))
        try:
            stop = serve_until_stopped(runtime, events, settings)
        finally:
            stop_runtime(runtime, events, settings.drain_timeout)
        print(f"Stopped after {stop.signal_name}.", flush=True)
    return 0


def farewell(runtime: Runtime, log_file: Path | None) -> str:
    """Where the server is, and how to come back to it."""
    about = f"process {os.getpid()}" + (f", log {log_file}" if log_file is not None else "")
    return plain(
        f"{runtime.backend.model.name} goes on being served at {runtime.address} ({about})."
        f" soup tui --attach comes back to it, kill {os.getpid()} stops it."
    )


def drop_terminal() -> None:
    """Read nothing and write nowhere from now on: what is written to a terminal that has gone
    would be an error."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (_INPUT, _OUTPUT, _ERRORS):
        os.dup2(nothing, descriptor)
    os.close(nothing)


def leave_terminal() -> Path | None:
    """Read nothing and write into a log file from now on; the file, if there can be one."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    drop_terminal()
    try:
        path = _new_log_file()
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return None
    for descriptor in (_OUTPUT, _ERRORS):
        os.dup2(log, descriptor)
    os.close(log)
    return path


def _new_log_file() -> Path:
    """Where this process may make a file; of earlier ones the latest are kept."""
    import platformdirs

    folder = platformdirs.user_log_path("soup", appauthor=False)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / f"soup-{os.getpid()}.log"
    path.unlink(missing_ok=True)
    earlier = sorted(folder.glob("soup-*.log"), key=lambda earlier: earlier.stat().st_mtime)
    for old in earlier[: max(0, len(earlier) - _KEPT_LOGS + 1)]:
        old.unlink(missing_ok=True)
    return path


def _log_to_stderr(runtime: Runtime, settings: Settings) -> None:
    """What was logged so far, then what is logged from now on."""
    handler = stderr_handler()
    handler.setLevel(settings.log_level.upper())
    for entry in runtime.logs.entries(min_level=handler.level):
        record = {
            "created": entry.time,
            "levelname": entry.level,
            "name": entry.logger,
            "msg": entry.message,
        }
        handler.handle(logging.makeLogRecord(record))
    logging.getLogger().addHandler(handler)

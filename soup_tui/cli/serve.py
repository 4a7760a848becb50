"""``soup serve``: the engine and its server without the application."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeAlias

from soup_engine.errors import CannotRunError, ConfigError
from soup_tui.cli.progress import loading_view
from soup_tui.cli.report import start_report
from soup_tui.cli.shutdown import leave_now, stop_runtime
from soup_tui.cli.signals import StopAsked, stop_signals
from soup_tui.config import Settings
from soup_tui.launch import (
    Failed,
    LaunchEvent,
    Loading,
    OpenRuntime,
    Ready,
    launch,
    open_runtime,
)
from soup_tui.running_servers import announcing

if TYPE_CHECKING:
    from soup_engine.runtime import Runtime
    from soup_tui.cli.dashboard import Dashboard

_WATCH_INTERVAL_S = 1.0


Event: TypeAlias = LaunchEvent | StopAsked


def run(settings: Settings) -> int:
    """Serve a model over HTTP until a signal to stop."""
    return serve(settings, open_runtime)


def serve(settings: Settings, open_it: OpenRuntime) -> int:
    """Open a runtime, report it, and keep it until SIGINT or SIGTERM; 0 after a clean end.

    Raises:
        SoupError: it cannot be opened, or it failed while it served.
    """
    settings.require_model()
    if settings.dashboard and not sys.stdout.isatty():
        raise ConfigError("--dashboard draws in a terminal, and the output is none: leave it out.")
    _log_to_stderr(settings)
    events: SimpleQueue[Event] = SimpleQueue()
    with stop_signals(events):
        runtime = _open(settings, events, open_it)
        if isinstance(runtime, StopAsked):
            print(f"Stopped by {runtime.signal_name} before the model was loaded.", flush=True)
            leave_now()
        print(_report(runtime, settings), flush=True)
        try:
            stop = serve_until_stopped(runtime, events, settings)
        finally:
            stop_runtime(runtime, events, settings.drain_timeout)
        print(f"Stopped after {stop.signal_name}.", flush=True)
    return 0


def _report(runtime: Runtime, settings: Settings) -> str:
    return start_report(
        runtime.backend.model,
        runtime.address or "",
        settings.server_config(),
        runtime.adapters.ready_names(),
    )


def _open(
    settings: Settings, events: SimpleQueue[Event], open_it: OpenRuntime
) -> Runtime | StopAsked:
    """The runtime once it answers, or the signal that came first."""
    launch(settings, events.put, announcing(open_it, "serve"))
    with loading_view() as view:
        while True:
            match events.get():
                case Loading() as loading:
                    view.show(loading)
                case Ready(runtime):
                    return runtime
                case Failed(error):
                    raise error
                case StopAsked() as stop:
                    return stop


def serve_until_stopped(
    runtime: Runtime, events: SimpleQueue[Event], settings: Settings
) -> StopAsked:
    """Wait for a signal, drawing the dashboard meanwhile if one is wanted.

    Raises:
        CannotRunError: the engine failed.
    """
    with _dashboard(runtime) if settings.dashboard else nullcontext() as dashboard:
        while True:
            try:
                event = events.get(timeout=_WATCH_INTERVAL_S)
            except Empty:
                if runtime.snapshot().state == "failed" and not runtime.restarts:
                    raise CannotRunError(
                        "The engine failed: see the log above. With --restart on-failure it is"
                        " started again."
                    ) from None
                if dashboard is not None:
                    dashboard.refresh()
            else:
                if isinstance(event, StopAsked):
                    return event


def _dashboard(runtime: Runtime) -> Dashboard:
    # Here, because rich takes longer to load than --help may.
    from soup_tui.cli.dashboard import Dashboard

    return Dashboard(runtime)


def _log_to_stderr(settings: Settings) -> None:
    """Our log records at the level asked for, and warnings of the libraries."""
    level = settings.log_level.upper()
    logging.getLogger("soup_engine").setLevel(level)
    handler: logging.Handler = logging.NullHandler() if settings.dashboard else stderr_handler()
    handler.setLevel(level)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


def stderr_handler() -> logging.Handler:
    """Writes records to the standard error as it is now."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler

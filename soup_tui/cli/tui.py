"""``soup tui``: the terminal application, with the engine and its server in the same process."""

from __future__ import annotations

import logging
import sys
from queue import SimpleQueue

from soup_engine.errors import ConfigError
from soup_tui.cli.shutdown import leave_now, stop_runtime
from soup_tui.cli.signals import stop_signals
from soup_tui.config import Settings
from soup_tui.launch import OpenRuntime, open_runtime


def run(settings: Settings) -> int:
    """Open the terminal application and serve a model from it."""
    return tui(settings, open_runtime)


def tui(settings: Settings, open_it: OpenRuntime) -> int:
    """Run the application until it is left, then stop what it served; 0 after a clean end.

    Raises:
        ConfigError: there is no terminal.
        SoupError: nothing could be served; the application showed it, the shell shows it again.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("soup tui needs a terminal; soup serve runs without one.")
    logging.getLogger("soup_engine").setLevel(settings.log_level.upper())
    # The terminal is the application's: records are kept for its log view, not printed.
    logging.basicConfig(handlers=[logging.NullHandler()])
    # Here, because textual takes longer to load than --help may.
    from soup_tui.app import SoupApp
    from soup_tui.bridge import Bridge

    bridge = Bridge(settings, open_it)
    SoupApp(settings, bridge).run()
    if bridge.loading:
        leave_now()
    if bridge.error is not None:
        raise bridge.error
    assert bridge.runtime is not None
    events: SimpleQueue[object] = SimpleQueue()
    with stop_signals(events):
        stop_runtime(bridge.runtime, events, settings.drain_timeout)
    return 0

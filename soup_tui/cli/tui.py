"""``soup tui``: the terminal application, with the engine and its server in the same process."""

from __future__ import annotations

import logging
import os
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
    from soup_tui.keymap import load_preferences, preferences_path
    from soup_tui.local_service import LocalService, local_opener
    from soup_tui.service import Leave
    from soup_tui.terminal import Terminal

    preferences = load_preferences(preferences_path())
    terminal = Terminal.detect(
        os.environ,
        sys.stdout.encoding,
        glyphs="ascii" if settings.ascii else preferences.glyphs,
        mouse=settings.mouse,
    )
    bridge = Bridge(settings, local_opener(open_it))
    leave = SoupApp(bridge, terminal, preferences).run(mouse=terminal.mouse)
    if bridge.loading:
        leave_now()
    service = bridge.service
    if service is None:
        if bridge.error is not None:
            raise bridge.error
        return 0
    assert isinstance(service, LocalService)
    events: SimpleQueue[object] = SimpleQueue()
    with stop_signals(events):
        timeout_s = 0.0 if leave is Leave.STOP else settings.drain_timeout
        stop_runtime(service.runtime, events, timeout_s)
    return 0

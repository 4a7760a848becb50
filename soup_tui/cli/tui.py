"""``soup tui``: the terminal application, with the engine and its server in the same process."""

from __future__ import annotations

import logging
import sys
from queue import SimpleQueue

from soup_engine.errors import ConfigError
from soup_tui.cli.shutdown import leave_now, stop_runtime
from soup_tui.cli.signals import stop_signals
from soup_tui.config import Settings


def run(settings: Settings) -> int:
    """Open the terminal application and serve a model from it.

    Raises:
        SoupError: the service could not be opened; said again once the application was left.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("soup tui needs a terminal; soup serve runs without one.")
    logging.getLogger("soup_engine").setLevel(settings.log_level.upper())
    # The terminal is the application's: records are kept for its log view, not printed.
    logging.basicConfig(handlers=[logging.NullHandler()])
    # Here, because textual takes longer to load than --help may.
    from soup_tui.app import SoupApp
    from soup_tui.bridge import Bridge

    bridge = Bridge(settings)
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

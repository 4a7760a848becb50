"""The application in a process: what it shows, and what becomes of its service when it goes."""

from __future__ import annotations

import asyncio
import codecs
import locale
import os
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from soup_tui.cli.headless import drop_terminal
from soup_tui.config import Settings
from soup_tui.service import Leave, OpenService

if TYPE_CHECKING:
    from soup_tui.app import SoupApp


def run_application(settings: Settings, open_it: OpenService) -> Leave:
    """Show what ``open_it`` opens until the application is left, or until its terminal has gone;
    then the service is to go on.

    A crash of the application, which shows its traceback, is no reason to end the service either.

    Raises:
        ConfigError: the user's own settings of the application are wrong.
    """
    # Here, because textual takes longer to load than --help may.
    from soup_tui.app import SoupApp
    from soup_tui.bridge import Bridge
    from soup_tui.keymap import load_preferences, preferences_path
    from soup_tui.terminal import Terminal

    preferences = load_preferences(preferences_path())
    terminal = Terminal.detect(
        os.environ,
        _encoding(),
        glyphs="ascii" if settings.ascii else preferences.glyphs,
        mouse=settings.mouse,
    )
    app = SoupApp(Bridge(settings, open_it), terminal, preferences)
    leave: Leave | None = None
    try:
        with _leaving_when_hung_up(app):
            leave = app.run(mouse=terminal.mouse)
    except OSError:
        if not _terminal_gone():
            raise
    if _terminal_gone() or app.return_code:
        return Leave.SERVE
    return leave or Leave.DRAIN


def _encoding() -> str:
    """Of the terminal: as the locale says, which Python may overrule for its own streams."""
    of_locale = locale.getencoding()
    return sys.stdout.encoding if codecs.lookup(of_locale).name == "utf-8" else of_locale


@contextmanager
def _leaving_when_hung_up(app: SoupApp) -> Iterator[None]:
    """SIGHUP ends the application; afterwards it does nothing.

    Without a handler it would end the process, and ignored it would leave the application alone
    with a terminal that takes and gives nothing any more.
    """

    def hang_up(_number: int, _frame: FrameType | None) -> None:
        drop_terminal()
        # The handler runs on the thread of the application's loop.
        asyncio.get_running_loop().call_soon_threadsafe(app.exit, Leave.SERVE)

    signal.signal(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _terminal_gone() -> bool:
    try:
        termios.tcgetattr(sys.stdin.fileno())
    except termios.error:
        return True
    return False

"""Screen 8: what the engine and the server logged."""

from __future__ import annotations

import logging
from collections import deque
from datetime import datetime
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.message import Message

from screens.frame import Bench, WorkbenchScreen
from soup_engine.logs import LogEntry
from soup_tui.actions import bindings
from soup_tui.service import Ability, Service
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.row_table import Column, Row, RowTable
from soup_tui.widgets.title import Title

_KEPT = 2_000
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_TONES = {"WARNING": "warning", "ERROR": "bad", "CRITICAL": "bad", "DEBUG": "muted"}
_COLUMNS = (Column("time", 8), Column("level", 7), Column("request", 12), Column("message", 0))


class LogsScreen(WorkbenchScreen):
    """The newest line is followed until the cursor is moved away from it."""

    class RequestWanted(Message):
        """The user wants to see a request."""

        def __init__(self, request_id: str) -> None:
            super().__init__()
            self.request_id = request_id

    NAME = "logs"
    FILTERS = True
    BINDINGS: ClassVar[list[BindingType]] = bindings("logs")

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._entries: deque[LogEntry] = deque(maxlen=_KEPT)
        self._service: Service | None = None
        self._level = "INFO"
        self._follow = True
        self._title = Title("Log", self.glyphs)
        self._table = RowTable(_COLUMNS, "Nothing is served now.", self.glyphs, id="log")
        self._detail = Reading(id="detail")

    def compose_body(self) -> ComposeResult:
        yield self._title
        yield self._table
        yield Title("Selected", self.glyphs)
        yield self._detail

    def on_row_table_cursor_moved(self) -> None:
        rows = self._table.rows
        self._follow = bool(rows) and self._table.selected == rows[-1].key
        self._show_detail()
        self._show_title()

    def look(self) -> None:
        service = self.bridge.service
        if service is not self._service:
            self._entries.clear()
            self._service = service
        if service is None:
            self._table.say("Nothing is served now.")
        elif (reason := service.missing.get(Ability.LOGS)) is not None:
            self._table.say(reason)
        else:
            after = self._entries[-1].sequence if self._entries else 0
            self._entries.extend(service.logs(after))
            self._table.say(f"Nothing from {self._level} on that matches.")
        self._table.show([_row(entry) for entry in self._entries if self._matches(entry)])
        if self._follow:
            self._table.select_last()
        self._show_detail()
        self._show_title()

    def _matches(self, entry: LogEntry) -> bool:
        levels = logging.getLevelNamesMapping()
        if levels.get(entry.level, logging.INFO) < levels[self._level]:
            return False
        text = f"{entry.message} {entry.request_id or ''}".lower()
        return self._filter.lower() in text

    def _show_title(self) -> None:
        parts = [f"{self._level} and above"]
        if self._filter:
            parts.append(f"with {self._filter!r}")
        parts.append("following" if self._follow else "standing still")
        self._title.show(f" {self.glyphs.bullet} ".join(parts))

    def _selected_entry(self) -> LogEntry | None:
        key = self._table.selected
        return next((one for one in self._entries if str(one.sequence) == key), None)

    def _show_detail(self) -> None:
        entry = self._selected_entry()
        self._detail.show("" if entry is None else f"{entry.logger}: {entry.message}")

    def copied(self) -> str:
        entry = self._selected_entry()
        return "" if entry is None else entry.message

    def action_level(self) -> None:
        self._level = _LEVELS[(_LEVELS.index(self._level) + 1) % len(_LEVELS)]
        self.look()

    def action_follow(self) -> None:
        self._follow = not self._follow
        self.look()

    def action_request(self) -> None:
        """Go to the request that the selected line is about."""
        entry = self._selected_entry()
        if entry is None or entry.request_id is None:
            self.say("This line is about no request.", "warning")
            return
        self.post_message(self.RequestWanted(entry.request_id))


def _row(entry: LogEntry) -> Row:
    time = datetime.fromtimestamp(entry.time).strftime("%H:%M:%S")
    cells = (time, entry.level, entry.request_id or "", entry.message)
    return Row(str(entry.sequence), cells, _TONES.get(entry.level, ""))

"""Screen 4: exports."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from screens.frame import Bench, WorkbenchScreen
from soup_tui.actions import bindings
from soup_tui.formatting import count, size
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.row_table import Column, Row, RowTable
from soup_tui.widgets.title import Title


class ExportScreen(WorkbenchScreen):
    """What could be exported; exporting itself is not part of this version."""

    NAME = "export"
    BINDINGS: ClassVar[list[BindingType]] = bindings("export")

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        columns = (Column("source", 24), Column("what it is", 0), Column("size", 10, right=True))
        self._sources = RowTable(columns, "Nothing is served now.", self.glyphs, id="sources")

    def compose_body(self) -> ComposeResult:
        yield Title("Sources", self.glyphs)
        yield self._sources
        yield Title("Jobs", self.glyphs)
        yield Reading("This version has no exports yet: there are no jobs to show.", id="jobs")

    def look(self) -> None:
        service = self.bridge.service
        if service is None:
            self._sources.show([])
            return
        model = service.model
        rows = [
            Row(
                "base",
                (
                    model.name,
                    f"base model, {model.architecture}",
                    count(model.num_parameters) if model.num_parameters else self.glyphs.nothing,
                ),
            )
        ]
        for view in self.bridge.adapters.views:
            held = self.glyphs.nothing if view.size_bytes is None else size(view.size_bytes)
            what = f"adapter, rank {view.rank}" if view.rank else view.status.value
            rows.append(Row(f"adapter {view.name}", (view.name, what, held)))
        self._sources.show(rows)

"""Screen 5: speculative decoding."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from screens.frame import Bench, WorkbenchScreen
from soup_tui.actions import bindings
from soup_tui.widgets.position_bars import PositionBars
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.title import Title


class DraftsScreen(WorkbenchScreen):
    """No engine of this version drafts, so there are no figures to show."""

    NAME = "drafts"
    BINDINGS: ClassVar[list[BindingType]] = bindings("drafts")

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._state = Reading(id="state")
        self._positions = PositionBars(self.glyphs)

    def compose_body(self) -> ComposeResult:
        yield Title("Drafts", self.glyphs)
        yield self._state
        yield Title("Accepted by position", self.glyphs, note="no drafts yet")
        yield self._positions

    def look(self) -> None:
        service = self.bridge.service
        self._state.show(
            "Nothing is served now."
            if service is None
            else f"The backend {service.model.backend} does not draft: every token comes from"
            " the model itself."
        )

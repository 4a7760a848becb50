"""A heading in a line of its own, with a rule after it."""

from __future__ import annotations

from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual.strip import Strip

from soup_tui.cells import fit
from soup_tui.formatting import plain
from soup_tui.glyphs import BRAILLE, Glyphs
from soup_tui.widgets.painted import Painted


class Title(Painted):
    """``TTFT ──────────── a note``: the note stands at the right and may change."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"title--text", "title--rule", "title--note"}

    def __init__(
        self, text: str, glyphs: Glyphs = BRAILLE, *, note: str = "", id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._text = plain(text)
        self._note = plain(note)
        self._glyphs = glyphs

    @property
    def note(self) -> str:
        return self._note

    def show(self, note: str, text: str | None = None) -> None:
        """Change the note, and the heading where one is given."""
        shown = (self._text if text is None else plain(text), plain(note))
        if shown != (self._text, self._note):
            self._text, self._note = shown
            self.repaint()

    def paint_line(self, y: int) -> Strip:
        width = self.size.width
        if y or width <= 0:
            return Strip.blank(width, self.rich_style)
        text = fit(self._text, min(width, cell_len(self._text)), self._glyphs)
        room = max(0, width - cell_len(text) - 3)
        note = fit(self._note, min(room, cell_len(self._note)), self._glyphs)
        rule_width = width - cell_len(text) - cell_len(note) - 1 - bool(note)
        rule = self._glyphs.rule * max(0, rule_width)
        strip = Strip(
            [
                Segment(f"{text} ", self.get_component_rich_style("title--text")),
                Segment(rule, self.get_component_rich_style("title--rule")),
                Segment(f" {note}" if note else "", self.get_component_rich_style("title--note")),
            ]
        )
        return strip.adjust_cell_length(width, self.rich_style)

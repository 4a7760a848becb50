"""The axis below lines over time, with marks of what happened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rich.segment import Segment
from textual.strip import Strip

from soup_tui.glyphs import BRAILLE, Glyphs
from soup_tui.history import SWAP
from soup_tui.widgets.line_strip import GUTTER
from soup_tui.widgets.painted import Painted

_LEGEND_WIDTH = 20


class TimeAxis(Painted):
    """From ``-5 min`` to ``now``, as wide as the lines above it; the legend stands to the right."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"axis--text", "axis--swap", "axis--preemption"}

    def __init__(self, glyphs: Glyphs = BRAILLE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._start = ""
        self._marks: dict[int, str] = {}

    @property
    def columns(self) -> int:
        return max(0, self.size.width - GUTTER - _LEGEND_WIDTH)

    def show(self, start: str, marks: Mapping[int, str]) -> None:
        """Name of the left end, and the kinds of marks by column."""
        if (start, dict(marks)) != (self._start, self._marks):
            self._start, self._marks = start, dict(marks)
            self.repaint()

    def paint_line(self, y: int) -> Strip:
        width, columns = self.size.width, self.columns
        if y or columns < len(self._start) + 8:
            return Strip.blank(width, self.rich_style)
        line = list(f"{self._start} ".ljust(columns - 4, self._glyphs.rule) + " now")
        kinds: dict[int, str] = {}
        for column, kind in self._marks.items():
            if len(self._start) < column < columns - 4:
                line[column] = self._glyphs.rising if kind == SWAP else self._glyphs.falling
                kinds[column] = kind
        text = self.get_component_rich_style("axis--text")
        segments = [Segment(" " * GUTTER, text)]
        for column, character in enumerate(line):
            mark = kinds.get(column)
            style = text if mark is None else self.get_component_rich_style(f"axis--{mark}")
            segments.append(Segment(character, style))
        legend = f"  {self._glyphs.rising} swap {self._glyphs.falling} preempt"
        segments.append(Segment(legend.ljust(_LEGEND_WIDTH), text))
        return Strip(segments).simplify().adjust_cell_length(width, self.rich_style)

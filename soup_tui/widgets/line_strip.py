"""Lines over time, the newest values at the right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from soup_tui.cells import fit
from soup_tui.glyphs import BRAILLE, Glyphs
from soup_tui.widgets.painted import Painted
from soup_tui.widgets.plot import NONE, Cell, Values, line_cells, nice_top, strip_of

GUTTER = 8
"""Cells of the axis to the left of the lines."""


class LineStrip(Painted):
    """Up to three lines on one axis from 0 to a round number.

    Args:
        unit: how a value is written at the axis.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "line--0",
        "line--1",
        "line--2",
        "line--axis",
    }

    def __init__(
        self, unit: Callable[[float], str], glyphs: Glyphs = BRAILLE, *, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._unit = unit
        self._glyphs = glyphs
        self._series: tuple[tuple[float | None, ...], ...] = ()
        self._rows: list[list[Cell]] | None = None
        self._top = 1.0

    @property
    def columns(self) -> int:
        """How many values the width has room for."""
        return max(0, self.size.width - GUTTER) * self._glyphs.dots[0]

    def show(self, series: Sequence[Values]) -> None:
        """Show the values, the oldest first; the same ones again repaint nothing."""
        kept = tuple(tuple(values) for values in series)
        if kept != self._series:
            self._series, self._rows = kept, None
            self.repaint()

    def paint_line(self, y: int) -> Strip:
        width, height = self.size
        base = self.rich_style
        if y >= height or width <= 0:
            return Strip.blank(width, base)
        plot_width = max(0, width - GUTTER)
        if self._rows is None or len(self._rows) != height or len(self._rows[0]) != plot_width:
            self._top = nice_top(self._series)
            self._rows = line_cells(self._series, plot_width, height, self._top, self._glyphs)
        label = self._unit(self._top) if y == 0 else "0" if y == height - 1 else ""
        axis = fit(f"{label} ", min(width, GUTTER), self._glyphs, right=True)
        line = strip_of(self._rows[y], self._style_of)
        return Strip([Segment(axis, self.get_component_rich_style("line--axis")), *line])

    def _style_of(self, series: int) -> Style:
        if series == NONE:
            return self.rich_style
        return self.get_component_rich_style(f"line--{series % 3}")

"""One row that shows how a whole is divided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.style import Style
from textual.strip import Strip

from soup_tui.glyphs import BRAILLE, Glyphs
from soup_tui.widgets.painted import Painted
from soup_tui.widgets.plot import NONE, share_cells, strip_of


class ShareBar(Painted):
    """Shares of 1, each in its own colour, from the left; what is left over is empty."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "share--0",
        "share--1",
        "share--2",
        "share--3",
        "share--4",
        "share--empty",
    }

    def __init__(self, glyphs: Glyphs = BRAILLE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._shares: tuple[float, ...] = ()

    def show(self, shares: Sequence[float]) -> None:
        self._shares = tuple(shares)
        self.repaint()

    def paint_line(self, y: int) -> Strip:
        width = self.size.width
        if y or width <= 0:
            return Strip.blank(width, self.rich_style)
        return strip_of(share_cells(self._shares, width, self._glyphs), self._style_of)

    def _style_of(self, series: int) -> Style:
        name = "empty" if series == NONE else str(series % 5)
        return self.get_component_rich_style(f"share--{name}")

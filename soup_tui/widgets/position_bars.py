"""A share for each position of a draft."""

from __future__ import annotations

from typing import ClassVar

from rich.style import Style
from textual.strip import Strip

from soup_tui.cells import fit
from soup_tui.glyphs import BRAILLE, Glyphs
from soup_tui.widgets.painted import Painted
from soup_tui.widgets.plot import NONE, Values, bar_cells, strip_of

_GAP = 1


class PositionBars(Painted):
    """Shares from 0 to 1 as upright bars, by position from 1."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"position--bar", "position--label"}

    def __init__(self, glyphs: Glyphs = BRAILLE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._glyphs = glyphs
        self._shares: tuple[float | None, ...] = ()

    def show(self, shares: Values) -> None:
        if (kept := tuple(shares)) != self._shares:
            self._shares = kept
            self.repaint()

    def paint_line(self, y: int) -> Strip:
        width, height = self.size
        if y >= height or width <= 0 or not self._shares:
            return Strip.blank(width, self.rich_style)
        column = min(8, max(1, width // len(self._shares)))
        labels = 1 if height > 1 else 0
        if labels and y == height - 1:
            text = "".join(
                f"{position}".center(column)[:column]
                for position in range(1, len(self._shares) + 1)
            )
            return strip_of([(c, 1) for c in fit(text, width, self._glyphs)], self._style_of)
        rows = bar_cells(self._shares, width, height - labels, 1.0, self._glyphs, column)
        gap = _GAP if column > 2 else 0
        cells = [
            (" ", NONE) if gap and index % column >= column - gap else cell
            for index, cell in enumerate(rows[y])
        ]
        return strip_of(cells, self._style_of)

    def _style_of(self, series: int) -> Style:
        if series == NONE:
            return self.rich_style
        return self.get_component_rich_style("position--label" if series else "position--bar")

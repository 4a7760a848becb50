"""How often each range of values occurred."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.style import Style
from textual.strip import Strip

from soup_tui.cells import fit
from soup_tui.glyphs import BRAILLE, Glyphs
from soup_tui.widgets.painted import Painted
from soup_tui.widgets.plot import NONE, Cell, bar_cells, strip_of


@dataclass(frozen=True, slots=True)
class Bins:
    """``counts[i]`` values were at most ``bounds[i]`` and above the bound before it."""

    bounds: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()

    @classmethod
    def between(
        cls, bounds: Sequence[float], earlier: Sequence[float], later: Sequence[float]
    ) -> Bins:
        """From two cumulative histograms with the same bounds: what came between them, without
        the empty bins at both ends."""
        cumulative = [max(0.0, b - a) for a, b in zip(earlier, later, strict=True)]
        counts = [
            max(0.0, count - before)
            for before, count in zip([0.0, *cumulative], cumulative, strict=False)
        ]
        used = [index for index, count in enumerate(counts) if count]
        if not used:
            return cls()
        first, last = max(0, used[0] - 1), min(len(counts), used[-1] + 2)
        return cls(tuple(bounds[first:last]), tuple(counts[first:last]))


class Histogram(Painted):
    """Bars with the upper bounds below them.

    Args:
        unit: how a bound is written.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"histogram--bar", "histogram--axis"}

    def __init__(
        self, unit: Callable[[float], str], glyphs: Glyphs = BRAILLE, *, id: str | None = None
    ) -> None:
        super().__init__(id=id)
        self._unit = unit
        self._glyphs = glyphs
        self._bins = Bins()

    def show(self, bins: Bins) -> None:
        if bins != self._bins:
            self._bins = bins
            self.repaint()

    def paint_line(self, y: int) -> Strip:
        width, height = self.size
        if y >= height or width <= 0:
            return Strip.blank(width, self.rich_style)
        counts, bounds = self._bins.counts, self._bins.bounds
        if not counts:
            text = "no samples yet" if y == height // 2 else ""
            return strip_of(
                [(c, 1) for c in fit(text.center(width), width, self._glyphs)], self._style_of
            )
        bar_width = max(1, width // len(counts))
        shown = max(1, width // bar_width)
        # Of too many bins for the width, those with the largest values stay.
        counts, bounds = counts[-shown:], bounds[-shown:]
        if y == height - 1 and height > 1:
            return strip_of(self._axis(bounds, bar_width, width), self._style_of)
        rows = max(1, height - 1)
        return strip_of(
            bar_cells(counts, width, rows, max(counts), self._glyphs, bar_width)[y],
            self._style_of,
        )

    def _axis(self, bounds: Sequence[float], bar_width: int, width: int) -> list[Cell]:
        """Labels of bounds, each under the right end of its bar, as many as fit."""
        text = ""
        for index, bound in enumerate(bounds):
            label = self._unit(bound)
            start = (index + 1) * bar_width - len(label)
            if start >= len(text) + (2 if text else 0):
                text = text.ljust(start) + label
        return [(character, 1) for character in fit(text, width, self._glyphs)]

    def _style_of(self, series: int) -> Style:
        if series == NONE:
            return self.rich_style
        return self.get_component_rich_style("histogram--axis" if series else "histogram--bar")

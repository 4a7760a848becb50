"""Three percentiles, one below the other, the highest on top."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual.strip import Strip

from soup_engine.metrics.snapshot import Percentiles
from soup_tui.formatting import duration
from soup_tui.glyphs import BRAILLE, Glyphs
from soup_tui.widgets.painted import Painted

QUANTILES = ("p99", "p95", "p50")


class PercentileFigures(Painted):
    """In the colours of their lines."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"figures--p99", "figures--p95", "figures--p50"}

    def __init__(self, glyphs: Glyphs = BRAILLE) -> None:
        super().__init__()
        self._texts = tuple(f"{name} {glyphs.nothing:>9}" for name in QUANTILES)
        self._glyphs = glyphs

    @property
    def texts(self) -> tuple[str, ...]:
        return self._texts

    def show(self, found: Percentiles | None) -> None:
        values = [None if found is None else getattr(found, name) for name in QUANTILES]
        self._texts = tuple(
            f"{name} {duration(value) or self._glyphs.nothing:>9}"
            for name, value in zip(QUANTILES, values, strict=True)
        )
        self.repaint()

    def paint_line(self, y: int) -> Strip:
        if y >= len(QUANTILES):
            return Strip.blank(self.size.width, self.rich_style)
        style = self.get_component_rich_style(f"figures--{QUANTILES[y]}")
        return Strip([Segment(f"  {self._texts[y]}", style)])

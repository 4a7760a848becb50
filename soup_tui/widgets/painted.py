"""The base of widgets that paint themselves line by line, and repaint only the cells that changed.

On a remote terminal every byte counts: a figure that changes in its last digit costs a few.
"""

from __future__ import annotations

from itertools import chain, repeat

from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget


class Painted(Widget):
    """Subclasses fill ``paint_line`` and call ``repaint`` when what it shows has changed."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._painted: dict[int, Strip] = {}

    def paint_line(self, y: int) -> Strip:
        """Line ``y``, exactly ``self.size.width`` cells; only for sizes above 0."""
        raise NotImplementedError

    def repaint(self) -> None:
        """Refresh the cells that differ from those painted last."""
        for y, before in self._painted.items():
            if y >= self.size.height:
                continue
            after = self._line(y)
            if (span := changed_span(before, after)) is not None:
                start, end = span
                self.refresh(Region(start, y, end - start, 1))

    def render_line(self, y: int) -> Strip:
        strip = self._painted[y] = self._line(y)
        return strip

    def _line(self, y: int) -> Strip:
        width = self.size.width
        if width <= 0:
            return Strip.blank(0)
        return self.paint_line(y).adjust_cell_length(width, self.rich_style)


def changed_span(before: Strip, after: Strip) -> tuple[int, int] | None:
    """First changed cell and the one after the last; ``None`` when nothing changed. All of a line
    with wide characters counts as changed."""
    if before == after:
        return None
    old, new = _cells(before), _cells(after)
    if len(old) != after.cell_length or len(new) != after.cell_length:
        return 0, after.cell_length
    changed = [x for x, (one, other) in enumerate(zip(old, new, strict=True)) if one != other]
    return (changed[0], changed[-1] + 1) if changed else None


def _cells(strip: Strip) -> list[tuple[str, Style | None]]:
    return list(
        chain.from_iterable(
            zip(segment.text, repeat(segment.style), strict=False) for segment in strip
        )
    )

"""Updates of the terminal that write the cells that changed, and not those to their left.

Textual crops what it writes of a widget's line at the right only: a figure at the end of a line
costs the whole line. Over SSH that is most of what an idle application sends.
"""

from __future__ import annotations

from rich.console import Console
from rich.control import Control
from textual._compositor import ChopsUpdate, Compositor
from textual.strip import Strip


class TightCompositor(Compositor):
    """In place of Textual's own; it differs in its partial updates alone."""

    def render_partial_update(self) -> ChopsUpdate | None:
        update = super().render_partial_update()
        if update is None:
            return None
        return TightUpdate(update.chops, update.spans, update.chop_ends)


class TightUpdate(ChopsUpdate):
    """Cells of ``spans`` (line, first cell, the one after the last)."""

    def render_segments(self, console: Console) -> str:
        """What is written to the terminal."""
        written: list[str] = []
        for y, first, after in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=True):
                if strip is None or x >= after or end <= first:
                    continue
                # Half of a wide character cannot be written.
                start = max(x, first) if _narrow(strip) else x
                cells = strip.crop(start - x, min(end, after) - x)
                written += (Control.move_to(start, y).segment.text, cells.render(console))
        return "".join(written)


def _narrow(strip: Strip) -> bool:
    """Whether each character takes one cell."""
    return strip.cell_length == sum(len(segment.text) for segment in strip)

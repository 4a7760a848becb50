"""Text in cells of the terminal, of which wide characters take two."""

from __future__ import annotations

from rich.cells import cell_len

from soup_tui.glyphs import Glyphs


def fit(text: str, width: int, marks: Glyphs, *, right: bool = False) -> str:
    """``text`` in exactly ``width`` cells: padded, or cut with an ellipsis."""
    length = cell_len(text)
    if length > width:
        text = _cut(text, width - 1) + marks.ellipsis if width > 0 else ""
        length = cell_len(text)
    padding = " " * (width - length)
    return padding + text if right else text + padding


def _cut(text: str, width: int) -> str:
    """As much of the beginning as fits into ``width`` cells."""
    taken = 0
    for index, character in enumerate(text):
        taken += cell_len(character)
        if taken > width:
            return text[:index]
    return text

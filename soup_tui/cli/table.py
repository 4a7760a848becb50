"""Tables of plain text, for a terminal and a pipe."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """The rows, each column as wide as its widest cell. Cells are plain text already."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)

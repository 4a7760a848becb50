"""Plots as characters: pure functions from numbers to rows of cells.

A cell is a character and the index of the series that it belongs to, ``NONE`` where there is none.
A value that is missing or no number leaves a gap; an infinite one touches the edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from soup_tui.glyphs import Glyphs

Values: TypeAlias = Sequence[float | None]
Cell: TypeAlias = tuple[str, int]
NONE = -1

_BRAILLE_BASE = 0x2800
_BRAILLE_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_HALVES = " ▀▄█"
_ASCII_MARKS = ".+*ox"


def nice_top(series: Sequence[Values]) -> float:
    """The end of an axis that starts at 0: the next 1, 2 or 5 of a power of ten; 1 for nothing."""
    finite = [value for values in series for value in values if value and math.isfinite(value)]
    highest = max(finite, default=0.0)
    if highest <= 0:
        return 1.0
    power = math.floor(math.log10(highest))
    for exponent in (power, power + 1):
        for mantissa in (1, 2, 5):
            top = float(f"{mantissa}e{exponent}")
            if top >= highest or math.isinf(top):
                return min(top, 1e308)
    return highest


def line_cells(
    series: Sequence[Values], width: int, height: int, top: float, glyphs: Glyphs
) -> list[list[Cell]]:
    """Lines from 0 to ``top``, the newest values at the right edge; later series lie above."""
    across, down = glyphs.dots
    columns, rows = width * across, height * down
    grid = [[0] * width for _ in range(height)]
    owner = [[NONE] * width for _ in range(height)]
    for index, values in enumerate(series):
        before: int | None = None
        shown = values[-columns:] if columns and rows else ()
        for x, value in enumerate(shown, start=columns - len(shown)):
            level = _level(value, top, rows)
            if level is not None:
                for y in _between(before, level):
                    row, column = (rows - 1 - y) // down, x // across
                    grid[row][column] |= _bit(x % across, (rows - 1 - y) % down, glyphs)
                    owner[row][column] = index
            before = level
    return [
        [
            (_character(bits, series_index, glyphs), series_index)
            for bits, series_index in zip(*row, strict=True)
        ]
        for row in zip(grid, owner, strict=True)
    ]


def _level(value: float | None, top: float, rows: int) -> int | None:
    """Which row of dots a value falls into, from the bottom; ``None`` for a gap."""
    if value is None or math.isnan(value):
        return None
    if value <= 0:
        return 0
    return rows - 1 if value >= top else round(value / top * (rows - 1))


def _between(before: int | None, level: int) -> range:
    """The dots that join a level to the one before it."""
    if before is None or before == level:
        return range(level, level + 1)
    return range(level, before) if before > level else range(before + 1, level + 1)


def _bit(x: int, y: int, glyphs: Glyphs) -> int:
    return _BRAILLE_BITS[x][y] if glyphs.dots == (2, 4) else 1 << y


def _character(bits: int, series: int, glyphs: Glyphs) -> str:
    if not bits:
        return " "
    if glyphs.dots == (2, 4):
        return chr(_BRAILLE_BASE + bits)
    if glyphs.dots == (1, 2):
        return _HALVES[bits]
    return _ASCII_MARKS[series % len(_ASCII_MARKS)]


def bar_cells(
    values: Values, width: int, height: int, top: float, glyphs: Glyphs, bar_width: int
) -> list[list[Cell]]:
    """Upright bars of ``bar_width`` cells from the left; series 0. A value above 0 shows."""
    steps = len(glyphs.levels) - 1
    eighths: list[int] = []
    for value in values:
        if value is None or math.isnan(value) or value <= 0:
            eighths.append(0)
        else:
            share = 1.0 if value >= top else value / top
            eighths.append(max(1, round(share * height * steps)))
    rows: list[list[Cell]] = []
    for row in range(height):
        below = (height - 1 - row) * steps
        cells: list[Cell] = []
        for filled in eighths:
            character = glyphs.levels[min(steps, max(0, filled - below))]
            cells.extend([(character, 0 if character != " " else NONE)] * bar_width)
        cells.extend([(" ", NONE)] * (width - len(cells)))
        rows.append(cells[:width])
    return rows


def share_cells(shares: Sequence[float], width: int, glyphs: Glyphs) -> list[Cell]:
    """One row, filled from the left by each share in turn; a share above 0 shows, and what is
    over 1 in all is cut."""
    cells: list[Cell] = []
    total = 0.0
    for index, share in enumerate(shares):
        if not math.isfinite(share) or share <= 0:
            continue
        total += share
        end = max(len(cells) + 1, round(min(total, 1.0) * width))
        fill = glyphs.fills[index % len(glyphs.fills)]
        cells.extend([(fill, index)] * (end - len(cells)))
    return [*cells, *[(glyphs.empty, NONE)] * (width - len(cells))][:width]


def strip_of(cells: Sequence[Cell], style_of: Callable[[int], Style]) -> Strip:
    """A row of cells as Textual paints it, in as few pieces as can be: each costs bytes, and a
    space looks the same in the style of its neighbour."""
    segments: list[Segment] = []
    text, worn = "", NONE
    for character, series in cells:
        if character != " " and series != worn:
            if worn != NONE or text.strip(" "):
                segments.append(Segment(text, style_of(worn)))
                text = ""
            worn = series
        text += character
    segments.append(Segment(text, style_of(worn)))
    return Strip(segments, len(cells))

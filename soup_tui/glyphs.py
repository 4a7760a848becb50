"""Characters that a terminal may or may not have, as sets."""

from __future__ import annotations

import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """Characters that the terminal may or may not have.

    Attributes:
        dots: dots of a plot in one character, across and down.
        fills: of the parts of a bar, told apart without colour.
        levels: filled eighths of a character from the bottom, empty first.
    """

    name: str
    nothing: str
    full: str
    fills: str
    empty: str
    dot: str
    cursor: str
    active: str
    ellipsis: str
    bullet: str
    rule: str
    rising: str
    falling: str
    times: str
    dots: tuple[int, int]
    levels: str


BRAILLE = Glyphs(
    name="braille",
    nothing="–",  # noqa: RUF001
    full="█",
    fills="█▓▒▚▞",
    empty="░",
    dot="●",
    cursor="▸",
    active="◆",
    ellipsis="…",
    bullet="·",
    rule="─",
    rising="▲",
    falling="▼",
    times="×",  # noqa: RUF001
    dots=(2, 4),
    levels=" ▁▂▃▄▅▆▇█",
)
BLOCK = Glyphs(
    name="block",
    nothing="–",  # noqa: RUF001
    full="█",
    fills="█▓▒▚▞",
    empty="░",
    dot="■",
    cursor="►",
    active="♦",
    ellipsis="…",
    bullet="·",
    rule="─",
    rising="▲",
    falling="▼",
    times="×",  # noqa: RUF001
    dots=(1, 2),
    levels="  ▄▄▄▄▄██",
)
ASCII = Glyphs(
    name="ascii",
    nothing="-",
    full="#",
    fills="#=+o%",
    empty=".",
    dot="*",
    cursor=">",
    active="*",
    ellipsis="~",
    bullet="|",
    rule="-",
    rising="^",
    falling="v",
    times="x",
    dots=(1, 1),
    levels=" ..::++##",
)
GLYPHS = {glyphs.name: glyphs for glyphs in (BRAILLE, BLOCK, ASCII)}


def glyphs_for(encoding: str | None, term: str = "") -> Glyphs:
    """The richest set that an encoding can carry; the console of Linux has no braille."""
    if (encoding or "ascii").lower().replace("-", "").replace("_", "") != "utf8":
        return ASCII
    return BLOCK if term == "linux" else BRAILLE


def stdout_glyphs() -> Glyphs:
    """The characters that the standard output can carry."""
    return glyphs_for(sys.stdout.encoding)

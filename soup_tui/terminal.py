"""What the terminal can show: characters, colours, motion, and how fast its line is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from soup_tui.glyphs import ASCII, BRAILLE, GLYPHS, Glyphs, glyphs_for

MIN_WIDTH, MIN_HEIGHT = 80, 24
"""The smallest terminal that the screens are drawn for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """Where the application runs.

    Attributes:
        remote: reached over SSH, where every byte counts.
        poll_interval_s: seconds between two looks at the service.
    """

    glyphs: Glyphs = BRAILLE
    colour: bool = True
    mouse: bool = True
    remote: bool = False
    poll_interval_s: float = 1.0

    @classmethod
    def detect(
        cls,
        environ: Mapping[str, str],
        encoding: str | None,
        *,
        glyphs: str | None = None,
        mouse: bool = True,
    ) -> Terminal:
        """From the environment and the encoding of the output; ``glyphs`` names a set, which an
        output that cannot carry it does not get."""
        found = glyphs_for(encoding, environ.get("TERM", ""))
        if glyphs is not None and found is not ASCII:
            found = GLYPHS[glyphs]
        remote = bool(environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"))
        return cls(
            glyphs=found,
            colour="NO_COLOR" not in environ,
            mouse=mouse,
            remote=remote,
            poll_interval_s=2.0 if remote else 1.0,
        )


_TO_ASCII = str.maketrans(
    {
        **dict.fromkeys("─━╌┄┈▔▁▂▃▀▄⎺", "-"),
        **dict.fromkeys("│┃▌▐▎▊▏▕▍▋▉", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼╭╮╯╰", "+"),
        **dict.fromkeys("█▆▇▅", "#"),
        **dict.fromkeys("‘’", "'"),  # noqa: RUF001
        **dict.fromkeys("“”", '"'),
        **dict.fromkeys("–—", "-"),  # noqa: RUF001
        "…": "~",
        "×": "x",  # noqa: RUF001
        "░": ".",
        "•": "*",
        "●": "*",
        "·": "|",
        "▸": ">",
        "▶": ">",
        "◆": "*",
        "▲": "^",
        "▼": "v",
        "\N{NO-BREAK SPACE}": " ",
    }
)


class AsciiOnly(LineFilter):
    """The last gate before a terminal without Unicode: what has no ASCII likeness is ``?``, in as
    many cells as it takes."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:  # noqa: ARG002
        return [
            segment
            if segment.control or segment.text.isascii()
            else Segment(to_ascii(segment.text), segment.style)
            for segment in segments
        ]


def to_ascii(text: str) -> str:
    """The text in ASCII, as wide as it was."""
    return "".join(
        character if character.isascii() else "?" * cell_len(character)
        for character in text.translate(_TO_ASCII)
    )

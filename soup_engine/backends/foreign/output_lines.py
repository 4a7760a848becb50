"""What the processes of an engine of another project write."""

from __future__ import annotations

from collections.abc import Sequence

from soup_engine.errors import shortened

KEPT_LINES = 100


def last_error(lines: Sequence[str]) -> str | None:
    """What the last exception said that was written, in one line."""
    for line in reversed(lines):
        name, colon, message = line.partition(": ")
        plain = name.rpartition(" ")[2].rpartition(".")[2]
        if colon and plain.endswith(("Error", "Exception")) and message:
            return message
    return None


def one_line(text: str) -> str:
    """The start of somebody else's message, as a sentence."""
    line = shortened(text)
    return line if line.endswith((".", "!", "?")) else f"{line}."

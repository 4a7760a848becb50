"""What the processes of an engine of another project write."""

from __future__ import annotations

from collections.abc import Sequence

KEPT_LINES = 100
_LONGEST = 300


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
    line = " ".join(text.split())[:_LONGEST]
    return line if line.endswith((".", "!", "?")) else f"{line}."

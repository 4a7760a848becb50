"""The file of prompts of a command on drafts."""

from __future__ import annotations

import sys
from pathlib import Path

from soup_engine.prompt_file import PromptFile, read_prompt_file
from soup_tui.formatting import plain

SHOWN_LINES = 5
"""That are named with what is wrong with them."""
SHOWN_NUMBERS = 40


def read_prompts(path: Path) -> PromptFile:
    """Read it, and say which lines are left out.

    Raises:
        PromptFileError: no line can be used.
    """
    read = read_prompt_file(path)
    for bad in read.bad_lines[:SHOWN_LINES]:
        _say(f"line {bad.line} of {path} {bad.reason}; it is left out.")
    if unsaid := read.bad_lines[SHOWN_LINES:]:
        numbers = ", ".join(str(bad.line) for bad in unsaid[:SHOWN_NUMBERS])
        more = f" and {len(unsaid) - SHOWN_NUMBERS} more" if len(unsaid) > SHOWN_NUMBERS else ""
        _say(
            f"So are lines {numbers}{more}: {len(read.bad_lines)} lines of {path} are left out in"
            " all."
        )
    return read


def _say(sentence: str) -> None:
    print(plain(f"soup: {sentence}"), file=sys.stderr)

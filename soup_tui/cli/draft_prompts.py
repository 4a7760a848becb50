"""The file of prompts of a command on drafts."""

from __future__ import annotations

import sys
from pathlib import Path

from soup_engine.prompt_file import PromptFile, read_prompt_file
from soup_tui.formatting import plain

SHOWN_LINES = 5


def read_prompts(path: Path) -> PromptFile:
    """Read it, and say which lines are left out.

    Raises:
        PromptFileError: no line can be used.
    """
    read = read_prompt_file(path)
    for bad in read.bad_lines[:SHOWN_LINES]:
        _say(f"line {bad.line} of {path} {bad.reason}; it is left out.")
    if len(read.bad_lines) > SHOWN_LINES:
        _say(f"{len(read.bad_lines)} lines of {path} are left out in all.")
    return read


def _say(sentence: str) -> None:
    print(plain(f"soup: {sentence}"), file=sys.stderr)

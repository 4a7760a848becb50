"""Paths as people and files name them. To look at one never fails, whatever it is made of: a name
that is too long, a zero byte, a loop of links, a folder that may not be entered."""

from __future__ import annotations

import os
from pathlib import Path


def is_folder(path: str | Path) -> bool:
    """Whether a folder is there and may be looked at."""
    try:
        return Path(path).is_dir()
    except (OSError, ValueError):
        return False


def is_file(path: str | Path) -> bool:
    """Whether a regular file is there and may be looked at."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def is_there(path: str | Path) -> bool:
    """Whether anything is there and may be looked at."""
    try:
        return Path(path).exists()
    except (OSError, ValueError):
        return False


def same_place(one: str | Path, other: str | Path) -> bool:
    """Whether two paths lead to the same place, links followed."""
    try:
        return os.path.realpath(one) == os.path.realpath(other)
    except (OSError, ValueError):
        return False


def with_home(text: str) -> Path:
    """The path with a leading ``~`` put in full, where there is such a home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)

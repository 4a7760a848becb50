"""Completes the path of a folder while it is typed."""

from __future__ import annotations

import os

from textual.suggester import Suggester

from soup_engine.user_paths import with_home


class FolderSuggester(Suggester):
    """Suggests the first folder, by name, that goes on like the text."""

    def __init__(self) -> None:
        super().__init__(use_cache=False, case_sensitive=True)

    async def get_suggestion(self, value: str) -> str | None:
        return complete_folder(value)


def complete_folder(text: str) -> str | None:
    """The text completed to an existing folder, with a slash at the end; ``None`` for none."""
    if not text:
        return None
    parent, separator, start = text.rpartition(os.sep)
    try:
        names = sorted(
            entry.name
            for entry in os.scandir(with_home(parent + separator or "."))
            if entry.name.startswith(start) and entry.is_dir() and entry.name.isprintable()
        )
    except (OSError, ValueError):
        return None
    visible = [name for name in names if start or not name.startswith(".")]
    return f"{parent}{separator}{visible[0]}{os.sep}" if visible else None

"""What adapters and aliases may be called."""

from __future__ import annotations

import re

from soup_engine.errors import AdapterInvalidError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(name: str) -> None:
    """Refuse what is no name for an adapter or an alias.

    Raises:
        AdapterInvalidError
    """
    if NAME.fullmatch(name) is None or ".." in name:
        raise AdapterInvalidError(
            f"{name[:80]!r} is no name for an adapter: it has 1 to 64 letters, digits, dots, "
            "underscores and hyphens, starts with a letter or digit, and holds no two dots in a "
            "row."
        )

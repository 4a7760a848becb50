"""An adapter's own chat template, where its folder has one."""

from __future__ import annotations

import json
from pathlib import Path

from soup_engine.adapters.paths import TEMPLATE_FILE, TOKENIZER_FILE, open_regular
from soup_engine.errors import AdapterInvalidError

MAX_TEMPLATE_BYTES = 1024 * 1024
MAX_TOKENIZER_BYTES = 64 * 1024 * 1024
"""Some tokenizers list all of their special tokens in their configuration."""


def read_chat_template(folder: Path) -> str | None:
    """The Jinja source in ``chat_template.jinja``, else in ``tokenizer_config.json``; of several
    named ones that which is called default.

    Raises:
        AdapterInvalidError: there is one, and it cannot be read.
    """
    source = _read(folder / TEMPLATE_FILE, MAX_TEMPLATE_BYTES)
    if source is not None:
        return source
    settings = _read(folder / TOKENIZER_FILE, MAX_TOKENIZER_BYTES)
    if settings is None:
        return None
    try:
        content = json.loads(settings)
        template = content.get("chat_template")
        if isinstance(template, list):
            template = {item["name"]: item["template"] for item in template}.get("default")
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
        raise AdapterInvalidError(f"{TOKENIZER_FILE} cannot be understood.") from error
    return template if isinstance(template, str) else None


def _read(path: Path, limit: int) -> str | None:
    """The text of a file; ``None`` where there is none."""
    try:
        with open_regular(path) as file:
            content = file.read(limit + 1)
    except FileNotFoundError:
        return None
    if len(content) > limit:
        raise AdapterInvalidError(f"{path.name} is longer than {limit:,} bytes.")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AdapterInvalidError(f"{path.name} is not UTF-8.") from error

"""Settings as one line of options that a person can change, and back."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from soup_engine.errors import ConfigError
from soup_tui.config import Settings, table
from soup_tui.config_sources import option_name, resolve
from soup_tui.setting import BOOLEAN

_SERVED = {name: about for name, about in table() if about.commands >= {"serve", "tui"}}
_DEFAULTS = Settings()


def option_line(settings: Settings) -> str:
    """Options that differ from their defaults, without the keys."""
    parts: list[str] = []
    for name, about in _SERVED.items():
        value = getattr(settings, name)
        if about.secret or value == getattr(_DEFAULTS, name):
            continue
        if about.kind is BOOLEAN:
            parts.append(option_name(name) if value else f"--no-{name.replace('_', '-')}")
        elif about.kind.many:
            parts += [option_name(name), *(f"{key}={path}" for key, path in value)]
        else:
            parts += [option_name(name), str(value)]
    return shlex.join(parts)


def settings_from_line(line: str, before: Settings) -> Settings:
    """What the line says; what it does not name has its default, but keys and what belongs to
    the application stay as they were ``before``.

    Raises:
        ConfigError: says which option is wrong, and what would work.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ConfigError(f"The line of options cannot be read: {error}.") from error
    options: dict[str, Any] = {}
    while words:
        name, value = _option(words)
        if _SERVED[name].kind.many:
            options[name] = [*options.get(name, []), value]
            while words and not words[0].startswith("-"):
                options[name].append(words.pop(0))
        else:
            options[name] = value
    kept = {
        name: getattr(before, name)
        for name, about in table()
        if name not in _SERVED or about.secret
    }
    settings = dataclasses.replace(resolve(options, {}), **kept)
    settings.require_model()
    return settings


def _option(words: list[str]) -> tuple[str, Any]:
    """The next option and its value, taken from ``words``."""
    word = words.pop(0)
    name, equals, value = word.removeprefix("--").partition("=")
    name = name.replace("-", "_")
    off = name.startswith("no_")
    about = _SERVED.get(name.removeprefix("no_") if off else name)
    if not word.startswith("--") or about is None:
        raise ConfigError(f"There is no option {word!r}; soup serve --help lists them.")
    if about.kind is BOOLEAN:
        return name.removeprefix("no_"), not off
    if equals:
        return name, value
    if not words:
        raise ConfigError(f"The option {word} takes a value.")
    return name, words.pop(0)

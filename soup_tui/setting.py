"""What a setting is: the type of its value, its range, and how it is read from text or TOML."""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?B)?", re.IGNORECASE)
_BOOLEANS = {"1": True, "true": True, "yes": True, "on": True} | {
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def parse_size(text: str) -> int:
    """Bytes of ``2GiB``, ``512M``, ``1.5 GB`` or ``1073741824``; K, M, G and T are powers of 1024.

    Raises:
        ValueError: the text is no size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(text)
    return int(float(match[1]) * 1024 ** _UNITS[match[2].upper()])


def _parse_boolean(text: str) -> bool:
    return _BOOLEANS[text.strip().lower()]


def parse_folders(value: object) -> tuple[tuple[str, Path], ...]:
    """Names and folders of ``a=./one b=./two`` (quoted as in a shell), of a list of such pairs,
    or of a table.

    Raises:
        ValueError: it is none of these, or a name stands there twice.
    """
    if isinstance(value, Mapping):
        pairs = list(value.items())
    elif isinstance(value, list | tuple):
        pairs = [_pair(item) for item in value]
    else:
        pairs = [_pair(item) for item in shlex.split(str(value))]
    texts = all(
        isinstance(text, str) and text.strip() and "\0" not in text
        for pair in pairs
        for text in pair
    )
    if not pairs or not texts or len(dict(pairs)) < len(pairs):
        raise ValueError(value)
    return tuple((name, Path(folder)) for name, folder in pairs)


def parse_names(value: object) -> tuple[str, ...]:
    """Paths or ids of ``./one ./two`` (quoted as in a shell), or of a list.

    Raises:
        ValueError: it is neither, or one of them is empty.
    """
    names = list(value) if isinstance(value, list | tuple) else shlex.split(str(value))
    if not names or not all(isinstance(n, str) and n.strip() and "\0" not in n for n in names):
        raise ValueError(value)
    return tuple(names)


def _pair(item: object) -> tuple[str, str]:
    name, separator, folder = str(item).partition("=")
    if not separator:
        raise ValueError(item)
    return name, folder


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of value: how it is called, read from text, and which TOML types it takes.

    Attributes:
        many: several values make one; ``parse`` takes lists and tables as well.
    """

    name: str
    metavar: str
    parse: Callable[[Any], Any]
    toml_types: tuple[type, ...]
    many: bool = False


TEXT = Kind("a text", "TEXT", str, (str,))
PATH = Kind("a path", "PATH", Path, (str,))
INTEGER = Kind("a whole number", "N", int, (int,))
NUMBER = Kind("a number", "X", float, (int, float))
BOOLEAN = Kind("true or false", "", _parse_boolean, (bool,))
FOLDERS = Kind(
    "one NAME=PATH or more, each name once",
    "NAME=PATH",
    parse_folders,
    (str, list, dict),
    many=True,
)
NAMES = Kind("one path or more", "PATH", parse_names, (str, list), many=True)
SIZE = Kind("a size such as 2GiB, 512M or a number of bytes", "SIZE", parse_size, (int, str))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the table knows of one setting beside its name and default.

    Attributes:
        also: a second name of the option.
        pattern: what a text must be, in words in ``pattern_text``.
        default_text: what ``--help`` says of a default that is found at start.
        commands: the commands that have it as an option.
        secret: the value never appears in a message.
    """

    kind: Kind
    help: str
    short: str | None = None
    also: str | None = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pattern: re.Pattern[str] | None = None
    pattern_text: str = ""
    low: float | None = None
    high: float | None = None
    default_text: str | None = None
    commands: frozenset[str] = frozenset({"serve", "tui"})
    secret: bool = False

    @property
    def expected(self) -> str:
        """What a value must be, as the end of a sentence."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.pattern is not None:
            return self.pattern_text
        if self.low is None:
            return self.kind.name
        bound = f"of at least {self.low:g}" if self.high is None else f"from {self.low:g}"
        return f"{self.kind.name} {bound}" + ("" if self.high is None else f" to {self.high:g}")

    def convert(self, value: object) -> Any:
        """The setting's value from a text or a TOML value.

        Raises:
            ValueError: it is not what the setting takes.
        """
        if isinstance(value, str) and "\0" in value:
            raise ValueError(value)
        try:
            to_parse = self.kind.many or isinstance(value, str)
            converted: Any = self.kind.parse(value) if to_parse else value
        except (KeyError, ValueError, OverflowError) as error:
            raise ValueError(value) from error
        if self.choices:
            converted = self.aliases.get(converted, converted)
            if converted not in self.choices:
                raise ValueError(value)
        if self.pattern is not None and not self.pattern.fullmatch(converted):
            raise ValueError(value)
        if self.kind in (TEXT, PATH) and not str(value).strip():
            raise ValueError(value)
        if self.low is not None and not self._in_range(converted):
            raise ValueError(value)
        return converted

    def _in_range(self, value: float) -> bool:
        assert self.low is not None
        return math.isfinite(value) and self.low <= value <= (self.high or math.inf)


def default_of(config: type, name: str) -> Any:
    """Default of a field of the engine's or the server's configuration: said once, there."""
    (found,) = (item for item in dataclasses.fields(config) if item.name == name)
    return found.default


def setting_field(kind: Kind, help_text: str, *, default: Any = None, **about: Any) -> Any:
    """A field of a class of settings."""
    setting = Setting(kind=kind, help=help_text, **about)
    return dataclasses.field(default=default, metadata={"setting": setting})

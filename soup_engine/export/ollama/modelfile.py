"""Writes an Ollama Modelfile in which no text can become an instruction.

The grammar as its reference describes it, and as far as it matters here: an instruction is a word
and its value; a value without quotes ends with its line; one between three double quotes may have
several lines, and ends with three double quotes that end a line. There are no escapes. So a text
with three double quotes in a row cannot be written, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from soup_engine.errors import ExportError

QUOTES = '"""'
_PARAMETER = re.compile(r"[a-z][a-z0-9_]{0,63}")
_PATTERN_CHARACTERS = "*?["
_NAME_PART = r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}"
_NAME = re.compile(rf"(?:{_NAME_PART}/){{0,2}}{_NAME_PART}(?::{_NAME_PART})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Modelfile:
    """What a model is made from.

    Attributes:
        path: of the GGUF file, absolute, as the system writes it (spaces and backslashes too).
        parameters: name and value of each; a name may occur more than once (``stop``).
    """

    path: str
    template: str | None = None
    system: str | None = None
    parameters: Sequence[tuple[str, str]] = ()

    def text(self) -> str:
        """The Modelfile.

        Raises:
            ExportError: a value cannot be written without changing it.
        """
        lines = [f"FROM {_path(self.path)}"]
        if self.template is not None:
            lines.append(f"TEMPLATE {quoted(self.template, 'The template')}")
        if self.system is not None:
            lines.append(f"SYSTEM {quoted(self.system, 'The system prompt')}")
        for name, value in self.parameters:
            check_parameter(name)
            lines.append(f"PARAMETER {name} {quoted(value, f'The parameter {name}')}")
        return "\n".join(lines) + "\n"


def quoted(text: str, what: str) -> str:
    """A text between quotes.

    Raises:
        ExportError: it holds three double quotes in a row, or characters that a Modelfile loses.
    """
    if QUOTES in text:
        _refuse(
            what, 'has three double quotes in a row, which a Modelfile cannot hold: use "" or \''
        )
    if not all(character.isprintable() or character in "\n\t" for character in text):
        _refuse(what, "has control or invisible characters, which a Modelfile cannot hold")
    if text.endswith('"'):
        # Its last quotes and the closing ones would be four in a row or more. Ollama takes the
        # last three for the end; another reader might take the first.
        if "\n" in text or text != text.strip() or text.startswith('"'):
            _refuse(what, "ends in a double quote: end it in another character")
        return text
    return f"{QUOTES}{text}{QUOTES}"


def check_parameter(name: str) -> None:
    """Raises ExportError: no parameter can have this name."""
    if not _PARAMETER.fullmatch(name):
        raise ExportError(
            f"{name!r} cannot be a parameter of Ollama's: names are such as num_ctx.",
            param="parameter",
        )


def check_name(name: str) -> None:
    """Raises ExportError: no model can have this name."""
    if not _NAME.fullmatch(name):
        raise ExportError(
            f"{name!r} cannot be a model's name in Ollama: use letters, digits, '.', '_' and '-', "
            "with a tag after ':' if there is to be one.",
            param="name",
        )


def _path(path: str) -> str:
    if not all(character.isprintable() for character in path):
        _refuse("The path", "has control characters, which a Modelfile cannot hold")
    if any(character in path for character in _PATTERN_CHARACTERS):
        _refuse("The path", "has one of * ? [ in it, which Ollama takes for a pattern: rename it")
    if path.endswith('"') or QUOTES in path:
        _refuse("The path", "has double quotes where a Modelfile cannot hold them: rename it")
    # Quotes keep spaces at the end. Without need there are none, so that older readers cope.
    return path if path == path.strip() and not path.startswith('"') else f"{QUOTES}{path}{QUOTES}"


def _refuse(what: str, why: str) -> NoReturn:
    raise ExportError(f"{what} {why}.")

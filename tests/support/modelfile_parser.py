"""Reads Modelfiles by their documented grammar, independently of the writer.

Ollama's reference: a line is a comment, or an instruction and its arguments; instructions are
not case sensitive; text between three double quotes may go over several lines. Where the
reference leaves open which quotes end such a text, Ollama takes those at the end of a line, and
``strict`` takes the first: what is written must mean the same to both.
"""

from __future__ import annotations

INSTRUCTIONS = (
    "from",
    "parameter",
    "template",
    "system",
    "adapter",
    "license",
    "message",
    "requires",
    "renderer",
    "parser",
    "draft",
)
QUOTES = '"""'


def parse(text: str, *, strict: bool = False) -> list[tuple[str, str]]:
    """Instruction (``parameter NAME`` for those) and value, in order.

    Raises:
        ValueError: it is no Modelfile.
    """
    found = []
    lines = text.split("\n")
    while lines:
        line = lines.pop(0).strip(" \t\r")
        if not line or line.startswith("#"):
            continue
        name, _, value = line.partition(" ")
        name = name.lower()
        if name not in INSTRUCTIONS:
            raise ValueError(f"no instruction: {name!r}")
        if name == "parameter":
            key, _, value = value.lstrip(" ").partition(" ")
            if not all(c.isalnum() or c == "_" for c in key):
                raise ValueError(f"no parameter: {key!r}")
            name = f"parameter {key}"
        value, lines = _value(value.lstrip(" \t"), lines, strict)
        found.append((name, value))
    if not any(name == "from" for name, _ in found):
        raise ValueError("no FROM")
    return found


def _value(value: str, lines: list[str], strict: bool) -> tuple[str, list[str]]:
    if not value.startswith(QUOTES):
        if value.startswith('"') and value.endswith('"') and len(value) > 1:
            value = value[1:-1]
        return value, lines
    if strict:
        rest = "\n".join([value[3:], *lines])
        inside, quotes, after = rest.partition(QUOTES)
        if not quotes:
            raise ValueError("quotes are not closed")
        tail, _, remaining = after.partition("\n")
        if tail.strip():
            raise ValueError(f"after the quotes: {tail!r}")
        return inside, remaining.split("\n")
    collected = value
    while not (len(collected.strip()) >= 6 and collected.strip().endswith(QUOTES)):
        if not lines:
            raise ValueError("quotes are not closed")
        collected += "\n" + lines.pop(0)
    return collected.strip()[3:-3], lines

"""The few constructs of Go's text/template that templates for Ollama use here.

By the reference: ``{{ pipeline }}`` prints, ``{{ if }} … {{ else if }} … {{ else }} … {{ end }}``
takes empty text for false, ``{{ range .List }}`` sets the dot, ``{{ $x := v }}`` declares and
``{{ $x = v }}`` sets a variable, which is the same inside of a range; ``eq`` compares two values.
Everything outside of the braces is printed as it stands.
"""

from __future__ import annotations

import re
from typing import Any

_ACTION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


def render(template: str, data: dict[str, Any]) -> str:
    return _Renderer(_ACTION.split(template)).run(data)


class _Renderer:
    def __init__(self, pieces: list[str]) -> None:
        self._pieces = pieces
        self._variables: dict[str, Any] = {}

    def run(self, data: dict[str, Any]) -> str:
        output, at = self._block(0, data, True)
        assert at == len(self._pieces), "an end too many"
        return output

    def _block(self, at: int, dot: Any, live: bool) -> tuple[str, int]:
        """Text from piece ``at`` on; stops at an ``else`` or ``end`` that is not its own."""
        output = ""
        while at < len(self._pieces):
            piece = self._pieces[at]
            if at % 2 == 0:
                output += piece if live else ""
                at += 1
                continue
            action = piece.split()
            if action[0] in ("else", "end"):
                return output, at
            text, at = self._action(at, action, dot, live)
            output += text
        return output, at

    def _action(self, at: int, action: list[str], dot: Any, live: bool) -> tuple[str, int]:
        if action[0] == "if":
            return self._if(at, action[1:], dot, live)
        if action[0] == "range":
            return self._range(at, action[1:], dot, live)
        if len(action) > 2 and action[1] in (":=", "="):
            if live:
                assert (action[0] in self._variables) == (action[1] == "=")
                self._variables[action[0]] = self._value(action[2:], dot)
            return "", at + 1
        return (str(self._value(action, dot)) if live else ""), at + 1

    def _if(self, at: int, condition: list[str], dot: Any, live: bool) -> tuple[str, int]:
        taken = live and bool(self._value(condition, dot))
        output, at = self._block(at + 1, dot, taken)
        action = self._pieces[at].split()
        if action[0] == "end":
            return output, at + 1
        if action[1:2] == ["if"]:
            rest, at = self._if(at, action[2:], dot, live and not taken)
        else:
            rest, at = self._block(at + 1, dot, live and not taken)
            at += 1
        return output + rest, at

    def _range(self, at: int, items: list[str], dot: Any, live: bool) -> tuple[str, int]:
        found = self._value(items, dot) if live else []
        output = ""
        for item in found:
            text, end = self._block(at + 1, item, True)
            output += text
        if not found:
            _, end = self._block(at + 1, dot, False)
        return output, end + 1

    def _value(self, words: list[str], dot: Any) -> Any:
        if words[0] == "eq":
            return self._value([words[1]], dot) == self._value([words[2]], dot)
        (word,) = words
        if word.startswith('"'):
            return word[1:-1]
        if word.startswith("$"):
            return self._variables[word]
        return dot[word.removeprefix(".")]

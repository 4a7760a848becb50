"""The line of keys at the foot of every screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from textual.strip import Strip

from soup_tui.widgets.painted import Painted


class KeyLine(Painted):
    """Keys and what they do, as many as fit; the last ones always do.

    Args:
        keys: name of a key and its action in a word, the most useful first.
        last: shown at the right.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"keys--key", "keys--text"}

    def __init__(self, keys: Sequence[tuple[str, str]], last: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._keys = tuple(keys)
        self._last = tuple(last)

    def show(self, keys: Sequence[tuple[str, str]], last: Sequence[tuple[str, str]] = ()) -> None:
        if (shown := (tuple(keys), tuple(last))) != (self._keys, self._last):
            self._keys, self._last = shown
            self.repaint()

    def paint_line(self, y: int) -> Strip:
        width = self.size.width
        if y:
            return Strip.blank(width, self.rich_style)
        room = width - sum(_width(*entry) for entry in self._last)
        left: list[Segment] = []
        for entry in self._keys:
            if (room := room - _width(*entry)) < 0:
                room += _width(*entry)
                break
            left += self._segments(*entry)
        right = [segment for entry in self._last for segment in self._segments(*entry)]
        filler = Segment(" " * max(0, room), self.rich_style)
        return Strip([*left, filler, *right]).adjust_cell_length(width, self.rich_style)

    def _segments(self, key: str, text: str) -> list[Segment]:
        return [
            Segment(f" {key} ", self.get_component_rich_style("keys--key")),
            Segment(f"{text} ", self.get_component_rich_style("keys--text")),
        ]


def _width(key: str, text: str) -> int:
    return len(key) + len(text) + 3

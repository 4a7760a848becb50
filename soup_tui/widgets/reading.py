"""A text that repaints only when it changed."""

from __future__ import annotations

from textual.widgets import Static

from soup_tui.formatting import plain, plain_lines


class Reading(Static):
    """Shows a figure or foreign text as plain text: no markup, no control characters.

    Repainting costs bytes on a remote terminal, so showing the same text again does nothing.

    Args:
        lines: the text has lines that stay.
    """

    def __init__(
        self, text: str = "", *, id: str | None = None, classes: str = "", lines: bool = False
    ) -> None:
        self._safe = plain_lines if lines else plain
        super().__init__(self._safe(text), markup=False, id=id, classes=classes)
        self._shown = text

    @property
    def shown(self) -> str:
        """The text as it was given."""
        return self._shown

    def show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self.update(self._safe(text))

"""A text that repaints only when it changed."""

from __future__ import annotations

from textual.widgets import Static

from soup_tui.formatting import plain


class Reading(Static):
    """Shows a figure or foreign text as plain text: no markup, no control characters.

    Repainting costs bytes on a remote terminal, so showing the same text again does nothing.
    """

    def __init__(self, text: str = "", *, id: str | None = None, classes: str = "") -> None:
        super().__init__(plain(text), markup=False, id=id, classes=classes)
        self._shown = text

    @property
    def shown(self) -> str:
        """The text as it was given."""
        return self._shown

    def show(self, text: str) -> None:
        if text != self._shown:
            self._shown = text
            self.update(plain(text))

"""One turn of a conversation."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widgets import Markdown

from soup_tui.formatting import plain_lines
from soup_tui.glyphs import Glyphs
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.title import Title


class TurnView(Vertical):
    """While an answer streams it is plain text; once complete it is laid out as Markdown, whose
    links open nothing: a model can write anything."""

    def __init__(self, who: str, text: str, glyphs: Glyphs, *, answer: bool) -> None:
        super().__init__(classes="answer" if answer else "question")
        self._title = Title(who, glyphs)
        self._text = Reading(text, lines=True)

    def compose(self) -> ComposeResult:
        yield self._title
        yield self._text

    def show(self, text: str, figures: str, who: str | None = None) -> None:
        self._title.show(figures, who)
        self._text.show(text)

    def fail(self, sentence: str) -> None:
        """Below what was said until then."""
        self.mount(Reading(sentence, classes="bad"))

    def lay_out(self) -> None:
        """The text is complete."""
        self._text.display = False
        self.mount(Markdown(plain_lines(self._text.shown), open_links=False))

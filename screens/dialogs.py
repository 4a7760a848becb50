"""Questions that stand over a screen until they are answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.suggester import Suggester
from textual.widgets import Input

from soup_tui.glyphs import Glyphs
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.row_table import Column, Row, RowTable


class AskText(ModalScreen[str | None]):
    """Asks for one line of text; ``None`` when the user turns away."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel")]

    def __init__(
        self, title: str, hint: str, value: str = "", suggester: Suggester | None = None
    ) -> None:
        super().__init__(classes="dialog")
        self._title = title
        self._hint = hint
        self._value = value
        self._suggester = suggester

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = self._title
            field = Input(
                self._value, suggester=self._suggester, compact=True, select_on_focus=False
            )
            field.cursor_blink = False  # each blink costs bytes
            yield field
            yield Reading(self._hint, classes="name")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class AskChoice(ModalScreen[str | None]):
    """Asks for one of some things, by key or by cursor; ``None`` when the user turns away.

    Args:
        choices: result, key, and what it means. An empty key leaves it to the cursor.
        hint: what else there is to say.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel"),
        Binding("enter", "choose", "Choose"),
    ]

    def __init__(
        self,
        title: str,
        choices: Sequence[tuple[str, str, str]],
        glyphs: Glyphs,
        hint: str = "",
        selected: str | None = None,
    ) -> None:
        super().__init__(classes="dialog")
        self._title = title
        self._choices = tuple(choices)
        self._hint = hint
        self._selected = selected
        key_width = max((len(key) for _, key, _ in self._choices), default=0)
        self._table = RowTable(
            [*([Column("", key_width)] if key_width else []), Column("")], "nothing", glyphs
        )
        self._has_keys = bool(key_width)

    def compose(self) -> ComposeResult:
        with Vertical(classes="box") as box:
            box.border_title = self._title
            yield self._table
            yield Reading(self._hint, classes="name hint")

    def on_mount(self) -> None:
        self._table.styles.height = min(len(self._choices) + 1, 16)
        self._table.show(
            [
                Row(result, (key, text) if self._has_keys else (text,))
                for result, key, text in self._choices
            ]
        )
        if self._selected is not None:
            self._table.select(self._selected)
        self._table.focus()

    def on_key(self, event: events.Key) -> None:
        for result, key, _ in self._choices:
            if key and event.character == key:
                event.stop()  # or it would mean something to the screen below as well
                self.dismiss(result)
                return

    def action_choose(self) -> None:
        self.dismiss(self._table.selected)


class ShowText(ModalScreen[None]):
    """Lines to read; any of escape, enter, q and ? closes them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,question_mark", "dismiss(None)", "Close"),
    ]

    def __init__(self, title: str, text: str) -> None:
        super().__init__(classes="dialog")
        self._title = title
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box") as box:
            box.border_title = self._title
            yield Reading(self._text, lines=True)


async def ask_text(
    app: App[Any], title: str, hint: str, value: str = "", suggester: Suggester | None = None
) -> str:
    """From a worker: a line of text, empty when the user turns away."""
    answer = await app.push_screen_wait(AskText(title, hint, value, suggester))
    return (answer or "").strip()

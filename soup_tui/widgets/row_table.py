"""A table of plain text with one selected row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from soup_tui.cells import fit
from soup_tui.formatting import plain
from soup_tui.glyphs import BRAILLE, Glyphs
from soup_tui.widgets.painted import Painted

_GAP = 2
_MARGIN = 2
"""Cells before the first column, where the cursor stands."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        width: in cells; 0 takes what the others leave.
        from_width: width of the table below which the column is left out.
    """

    title: str
    width: int = 0
    right: bool = False
    from_width: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One row; ``key`` stays the same while its cells change.

    Attributes:
        tone: ``""``, ``muted``, ``good``, ``warning`` or ``bad``.
    """

    key: str
    cells: tuple[str, ...]
    tone: str = ""


class RowTable(Painted, can_focus=True):
    """Foreign text in cells is shown as text. Only lines that changed repaint.

    Args:
        nothing: what stands there when there are no rows.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "table--header",
        "table--cursor",
        "table--muted",
        "table--good",
        "table--warning",
        "table--bad",
    }
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "move(-1000000)", "First", show=False),
        Binding("end", "move(1000000)", "Last", show=False),
    ]

    class CursorMoved(Message):
        """Another row was selected by the user."""

        def __init__(self, table: RowTable) -> None:
            super().__init__()
            self.table = table

        @property
        def control(self) -> RowTable:
            return self.table

    def __init__(
        self,
        columns: Sequence[Column],
        nothing: str,
        glyphs: Glyphs = BRAILLE,
        *,
        id: str | None = None,
    ) -> None:
        super().__init__(id=id)
        self._columns = tuple(columns)
        self._nothing = nothing
        self._glyphs = glyphs
        self._rows: tuple[Row, ...] = ()
        self._cursor: str | None = None
        self._offset = 0

    @property
    def rows(self) -> tuple[Row, ...]:
        return self._rows

    @property
    def selected(self) -> str | None:
        """Key of the selected row."""
        return self._cursor

    @property
    def page_size(self) -> int:
        return max(1, self.size.height - 1)

    def say(self, nothing: str) -> None:
        """Change what stands there when there are no rows."""
        if nothing != self._nothing:
            self._nothing = nothing
            self.repaint()

    def show(self, rows: Sequence[Row]) -> None:
        """Show these rows. The selection stays with its row, or goes to the one in its place."""
        place = self._place()
        self._rows = tuple(rows)
        if all(row.key != self._cursor for row in self._rows):
            place = min(place, len(self._rows) - 1)
            self._cursor = self._rows[place].key if self._rows else None
        self._keep_in_view()
        self.repaint()

    def select(self, key: str) -> bool:
        """Select a row by its key; False when there is none."""
        if all(row.key != key for row in self._rows):
            return False
        self._cursor = key
        self._keep_in_view()
        self.repaint()
        return True

    def select_last(self) -> None:
        if self._rows and self._cursor != self._rows[-1].key:
            self.select(self._rows[-1].key)

    def _place(self) -> int:
        """Index of the selected row; 0 when there is none."""
        places = (index for index, row in enumerate(self._rows) if row.key == self._cursor)
        return next(places, 0)

    def _keep_in_view(self) -> None:
        place, page = self._place(), self.page_size
        highest = max(0, len(self._rows) - page)
        self._offset = min(highest, max(place - page + 1, min(self._offset, place)))

    def action_move(self, rows: int) -> None:
        if not self._rows:
            return
        place = min(len(self._rows) - 1, max(0, self._place() + rows))
        if self._rows[place].key != self._cursor:
            self._cursor = self._rows[place].key
            self._keep_in_view()
            self.repaint()
            self.post_message(self.CursorMoved(self))

    def action_page(self, pages: int) -> None:
        self.action_move(pages * self.page_size)

    def on_mouse_scroll_down(self) -> None:
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-1)

    def on_click(self, event: events.Click) -> None:
        self.action_move(self._offset + event.y - 1 - self._place())

    def on_resize(self) -> None:
        self._keep_in_view()
        self.repaint()

    def on_focus(self) -> None:
        self.repaint()

    def on_blur(self) -> None:
        self.repaint()

    def paint_line(self, y: int) -> Strip:
        width = self.size.width
        if width <= 0:
            return Strip.blank(0)
        if not self._rows:
            text = f"{' ' * _MARGIN}{self._nothing}" if y == 1 else ""
            return self._toned(fit(text, width, self._glyphs), "muted")
        if y == 0:
            return self._toned(self._laid_out([column.title for column in self._columns]), "header")
        number = self._offset + y - 1
        if number >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        row = self._rows[number]
        selected = row.key == self._cursor
        text = self._laid_out(row.cells, self._glyphs.cursor if selected else " ")
        return self._toned(text, "cursor" if selected and self.has_focus else row.tone)

    def _laid_out(self, cells: Sequence[str], first: str = " ") -> str:
        width = self.size.width
        shown = [
            (column, cell)
            for column, cell in zip(self._columns, cells, strict=True)
            if width >= column.from_width
        ]
        taken = sum(column.width for column, _ in shown) + _GAP * (len(shown) - 1) + _MARGIN
        rest = max(0, width - taken)
        texts = [
            fit(plain(cell), column.width or rest, self._glyphs, right=column.right)
            for column, cell in shown
        ]
        return fit(first.ljust(_MARGIN) + (" " * _GAP).join(texts), width, self._glyphs)

    def _toned(self, text: str, component: str) -> Strip:
        style: Style = self.rich_style
        if component:
            style = self.get_component_rich_style(f"table--{component}")
        return Strip([Segment(text, style)], self.size.width)

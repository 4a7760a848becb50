from __future__ import annotations

import pytest
from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.strip import Strip

from soup_tui.glyphs import ASCII
from soup_tui.widgets.painted import changed_span
from soup_tui.widgets.row_table import Column, Row, RowTable

RED = Style(color="red")


@pytest.mark.parametrize(
    ("before", "after", "span"),
    [
        ("abcdef", "abcdef", None),
        ("abcdef", "abXdYf", (2, 5)),
        ("abcdef", "abcdeX", (5, 6)),
        ("ab日本", "ab日木", (0, 6)),
    ],
)
def test_the_span_of_cells_that_changed(
    before: str, after: str, span: tuple[int, int] | None
) -> None:
    assert changed_span(Strip([Segment(before)]), Strip([Segment(after)])) == span


def test_a_style_is_part_of_a_cell_and_pieces_are_not() -> None:
    plain = Strip([Segment("abc")])
    assert changed_span(plain, Strip([Segment("a"), Segment("b", RED), Segment("c")])) == (1, 2)
    assert changed_span(plain, Strip([Segment("a"), Segment("bc")])) is None


class Table(App[None]):
    def compose(self) -> ComposeResult:
        yield RowTable([Column("name"), Column("n", 3, right=True)], "nothing", ASCII)


async def test_a_figure_that_changes_repaints_its_own_cells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Table().run_test(size=(20, 4)) as pilot:
        table = pilot.app.query_one(RowTable)
        table.styles.height = 4
        table.show([Row("a", ("one", "11")), Row("b", ("two", "22"))])
        await pilot.pause()
        regions: list[Region] = []
        monkeypatch.setattr(table, "refresh", lambda *asked: regions.extend(asked))
        table.show([Row("a", ("one", "12")), Row("b", ("two", "22"))])
        assert regions == [Region(19, 1, 1, 1)]


async def test_the_selection_stays_with_its_row() -> None:
    async with Table().run_test(size=(20, 4)) as pilot:
        table = pilot.app.query_one(RowTable)
        table.styles.height = 4
        table.focus()
        rows = [Row(name, (name, "")) for name in "abcdef"]
        table.show(rows)
        await pilot.press("down", "j", "down")
        assert table.selected == "d"
        table.show(rows[2:])
        assert table.selected == "d"
        table.show([row for row in rows if row.key != "d"])
        assert table.selected in "bce"
        await pilot.press("end", "k", "pageup", "home", "up")
        assert table.selected == "a"
        table.show([])
        assert table.selected is None
        await pilot.press("down")

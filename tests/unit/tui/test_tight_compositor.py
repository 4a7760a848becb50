"""What is written to the terminal when cells in the middle of a line change."""

from __future__ import annotations

from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from screens.frame import WorkbenchScreen
from soup_tui.app import SoupApp
from soup_tui.tight_compositor import TightCompositor, TightUpdate

RED = Style(color="red")


def written(strips: dict[int, Strip], *spans: tuple[int, int, int]) -> str:
    """Of a screen of one line, which these strips make up, by where they begin."""
    ends = [x + strip.cell_length for x, strip in strips.items()]
    console = Console(color_system="standard", force_terminal=True)
    return TightUpdate([strips], list(spans), [ends]).render_segments(console)


def test_the_changed_cells_alone_are_written() -> None:
    line = {0: Strip([Segment("name: "), Segment("12345", RED)]), 11: Strip([Segment(" end")])}
    assert written(line, (0, 8, 9)) == "\x1b[1;9H\x1b[31m3\x1b[0m"
    assert written(line, (0, 4, 7)) == "\x1b[1;5H: \x1b[31m1\x1b[0m"
    assert written(line, (0, 10, 13)) == "\x1b[1;11H\x1b[31m5\x1b[0m\x1b[1;12H e"
    assert written(line, (0, 11, 15)) == "\x1b[1;12H end"


def test_a_wide_character_is_not_cut_in_two() -> None:
    line = {0: Strip([Segment("日本語 12")])}
    assert written(line, (0, 3, 9)) == "\x1b[1;1H日本語 12"


async def test_every_screen_of_the_workbench_has_it(workbench: object) -> None:
    app = workbench.app
    assert isinstance(app, SoupApp)
    async with workbench.running():
        assert isinstance(app.screen, WorkbenchScreen)
        assert isinstance(app.screen._compositor, TightCompositor)

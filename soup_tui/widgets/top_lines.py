"""The two lines at the top of every screen: where one is, and how the service is."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.strip import Strip

from soup_tui.actions import SCREENS
from soup_tui.cells import fit
from soup_tui.formatting import plain
from soup_tui.glyphs import BRAILLE, Glyphs
from soup_tui.widgets.painted import Painted

STATES = (
    "idle",
    "loading",
    "starting",
    "ready",
    "draining",
    "sleeping",
    "waking",
    "stopped",
    "failed",
)
_LABELS = [f" {number} {name.title()} " for number, name in enumerate(SCREENS, start=1)]


class ScreenTabs(Painted):
    """The screens with their digits, the present one marked."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"tabs--here", "tabs--digit", "tabs--name"}

    class Chosen(Message):
        def __init__(self, screen: str) -> None:
            super().__init__()
            self.screen = screen

    def __init__(self, here: str) -> None:
        super().__init__()
        self._here = here

    def paint_line(self, y: int) -> Strip:
        width = self.size.width
        if y:
            return Strip.blank(width, self.rich_style)
        segments: list[Segment] = []
        for name, label in zip(SCREENS, _LABELS, strict=True):
            if name == self._here:
                segments.append(Segment(label, self.get_component_rich_style("tabs--here")))
            else:
                segments.append(Segment(label[:3], self.get_component_rich_style("tabs--digit")))
                segments.append(Segment(label[3:], self.get_component_rich_style("tabs--name")))
        return Strip(segments).adjust_cell_length(width, self.rich_style)

    def on_click(self, event: events.Click) -> None:
        end = 0
        for name, label in zip(SCREENS, _LABELS, strict=True):
            end += len(label)
            if event.x < end:
                self.post_message(self.Chosen(name))
                return


class StatusLine(Painted):
    """State, what is served, and how busy it is."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "status--good",
        "status--busy",
        "status--bad",
        "status--model",
        "status--figures",
    }

    def __init__(self, glyphs: Glyphs = BRAILLE) -> None:
        super().__init__()
        self._glyphs = glyphs
        self._shown = ("idle", "", "")

    def show(self, state: str, model: str, figures: str) -> None:
        if (shown := (state, plain(model), plain(figures))) != self._shown:
            self._shown = shown
            self.repaint()

    def paint_line(self, y: int) -> Strip:
        width = self.size.width
        if y or width <= 0:
            return Strip.blank(width, self.rich_style)
        state, model, figures = self._shown
        first = f" {self._glyphs.dot} {state}  "
        last = f"{figures} " if figures else ""
        middle = fit(model, max(0, width - len(first) - len(last) - 1), self._glyphs) + " "
        strip = Strip(
            [
                Segment(first, self.get_component_rich_style(f"status--{tone(state)}")),
                Segment(middle, self.get_component_rich_style("status--model")),
                Segment(last, self.get_component_rich_style("status--figures")),
            ]
        )
        return strip.adjust_cell_length(width, self.rich_style)


def tone(state: str) -> str:
    """``good``, ``busy`` or ``bad``."""
    if state == "ready":
        return "good"
    return "bad" if state in ("failed", "stopped") else "busy"

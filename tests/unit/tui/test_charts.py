"""The chart widgets on a screen, in sizes down to nothing."""

from __future__ import annotations

import math
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.widget import Widget

from soup_tui.formatting import short_duration
from soup_tui.glyphs import ASCII, GLYPHS
from soup_tui.widgets.histogram import Bins, Histogram
from soup_tui.widgets.line_strip import LineStrip
from soup_tui.widgets.position_bars import PositionBars
from soup_tui.widgets.share_bar import ShareBar

HOSTILE: list[list[float | None]] = [
    [],
    [1.0],
    [math.nan, math.nan],
    [math.inf, 1.0, -math.inf],
    [1e-300, 1e300, 5.0],
    [None, 0.0, None],
]


class OneWidget(App[None]):
    CSS = "Screen > * { width: 100%; height: 100%; }"

    def __init__(self, widget: Widget) -> None:
        super().__init__()
        self._widget = widget

    def compose(self) -> ComposeResult:
        yield self._widget


def lines(widget: Widget) -> list[str]:
    return [widget.render_line(y).text for y in range(widget.size.height)]


def show(widget: Any, values: list[float | None]) -> None:
    if isinstance(widget, LineStrip):
        widget.show([values, values])
    elif isinstance(widget, Histogram):
        counts = tuple(value or 0.0 for value in values)
        widget.show(Bins(tuple(float(index) for index in range(len(counts))), counts))
    else:
        widget.show([value or 0.0 for value in values])


@pytest.mark.parametrize("glyphs", GLYPHS.values(), ids=list(GLYPHS))
@pytest.mark.parametrize("kind", ["line", "histogram", "positions", "share"])
async def test_no_value_and_no_size_breaks_a_chart(kind: str, glyphs: Any) -> None:
    widget: Widget = {
        "line": LineStrip(short_duration, glyphs),
        "histogram": Histogram(short_duration, glyphs),
        "positions": PositionBars(glyphs),
        "share": ShareBar(glyphs),
    }[kind]
    async with OneWidget(widget).run_test(size=(30, 5)) as pilot:
        for size in ((30, 5), (1, 1), (9, 2), (200, 50)):
            await pilot.resize_terminal(*size)
            for values in HOSTILE:
                show(widget, values)
                await pilot.pause()
                assert {len(line) for line in lines(widget)} == {size[0]}


async def test_a_line_has_its_axis_at_the_left() -> None:
    strip = LineStrip(short_duration, ASCII)
    async with OneWidget(strip).run_test(size=(12, 3)) as pilot:
        strip.show([[0.1, 0.3, 0.5]])
        await pilot.pause()
        assert lines(strip) == ["  0.5 s    .", "          . ", "      0  .  "]


async def test_the_same_values_again_repaint_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    strip = LineStrip(short_duration, ASCII)
    async with OneWidget(strip).run_test(size=(12, 3)):
        strip.show([[0.1]])
        painted: list[object] = []
        monkeypatch.setattr(strip, "refresh", lambda *_: painted.append(1))
        strip.show([[0.1]])
        assert not painted
        strip.show([[0.2]])
        assert painted


async def test_a_histogram_names_its_bounds() -> None:
    histogram = Histogram(short_duration, ASCII)
    async with OneWidget(histogram).run_test(size=(15, 3)) as pilot:
        histogram.show(Bins((0.1, 0.2, 0.5), (1.0, 4.0, 2.0)))
        await pilot.pause()
        assert lines(histogram) == ["     #####     ", ":::::##########", "0.1 s     0.5 s"]


def test_bins_are_what_came_between_two_looks_without_empty_ends() -> None:
    bounds = (0.1, 0.2, 0.5, 1.0, 2.0)
    found = Bins.between(bounds, (0, 1, 1, 1, 1), (0, 1, 4, 6, 6))
    assert found == Bins((0.2, 0.5, 1.0, 2.0), (0.0, 3.0, 2.0, 0.0))
    assert Bins.between(bounds, (1,) * 5, (1,) * 5) == Bins()


async def test_positions_are_numbered_from_one() -> None:
    bars = PositionBars(ASCII)
    async with OneWidget(bars).run_test(size=(12, 2)) as pilot:
        bars.show([1.0, 0.5, 0.1])
        await pilot.pause()
        assert lines(bars) == ["### ::: ... ", " 1   2   3  "]

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soup_tui.glyphs import ASCII, BLOCK, BRAILLE, GLYPHS, Glyphs
from soup_tui.widgets.plot import NONE, Cell, bar_cells, line_cells, nice_top, share_cells

ANY_VALUE = st.none() | st.floats(allow_nan=True, allow_infinity=True)
ANY_GLYPHS = st.sampled_from(list(GLYPHS.values()))


def text(rows: list[list[Cell]]) -> list[str]:
    return ["".join(character for character, _ in row) for row in rows]


@given(
    st.lists(st.lists(ANY_VALUE, max_size=50), max_size=3),
    st.integers(0, 12),
    st.integers(0, 5),
    ANY_GLYPHS,
)
def test_lines_fill_exactly_their_place_whatever_the_values(
    series: list[list[float | None]], width: int, height: int, glyphs: Glyphs
) -> None:
    top = nice_top(series)
    assert 0 < top < math.inf
    rows = line_cells(series, width, height, top, glyphs)
    assert [len(row) for row in rows] == [width] * height
    for row in rows:
        for character, index in row:
            assert (character == " ") == (index == NONE)


@given(st.lists(ANY_VALUE, max_size=30), st.integers(1, 20), st.integers(1, 6), ANY_GLYPHS)
def test_bars_fill_exactly_their_place_whatever_the_values(
    values: list[float | None], width: int, height: int, glyphs: Glyphs
) -> None:
    rows = bar_cells(values, width, height, nice_top([values]), glyphs, 1)
    assert [len(row) for row in rows] == [width] * height


@given(st.lists(st.floats(), max_size=6), st.integers(0, 20), ANY_GLYPHS)
def test_shares_fill_exactly_their_place_whatever_the_values(
    shares: list[float], width: int, glyphs: Glyphs
) -> None:
    assert len(share_cells(shares, width, glyphs)) == width


def test_the_newest_value_is_at_the_right_edge() -> None:
    assert text(line_cells([[0.0, 1.0]], 4, 2, 1.0, ASCII)) == ["   .", "  . "]


def test_a_line_joins_far_levels_and_leaves_gaps_where_nothing_is_known() -> None:
    rows = text(line_cells([[0.0, 3.0, None, math.nan, 3.0]], 5, 4, 3.0, ASCII))
    assert rows == [" .  .", " .   ", " .   ", ".    "]


def test_braille_has_eight_dots_in_a_cell() -> None:
    assert text(line_cells([[0.0, 0.0]], 1, 1, 1.0, BRAILLE)) == ["⣀"]
    assert text(line_cells([[1.0, 1.0]], 1, 1, 1.0, BRAILLE)) == ["⠉"]
    assert text(line_cells([[0.0, 1.0]], 1, 1, 1.0, BLOCK)) == ["▀"]


def test_infinity_touches_the_edges_and_later_series_lie_above() -> None:
    assert text(line_cells([[math.inf, -math.inf]], 2, 2, 1.0, ASCII)) == [". ", " ."]
    ((cell,),) = line_cells([[1.0], [1.0]], 1, 1, 1.0, ASCII)
    assert cell == ("+", 1)


@pytest.mark.parametrize(
    ("values", "top"),
    [
        ([], 1.0),
        ([None, math.nan, math.inf], 1.0),
        ([0.0], 1.0),
        ([0.3], 0.5),
        ([10.0], 10.0),
        ([10.1], 20.0),
        ([1e-9], 1e-9),
        ([1.5e300], 2e300),
        ([1.7e308], 1e308),
    ],
)
def test_the_axis_ends_at_a_round_number(values: list[float | None], top: float) -> None:
    assert nice_top([values]) == top


def test_a_bar_grows_by_eighths_and_a_little_shows() -> None:
    assert text(bar_cells([0.5, 1.0, 1e-6, 0.0], 4, 1, 1.0, BRAILLE, 1)) == ["▄█▁ "]
    assert text(bar_cells([0.5, 1.0], 2, 2, 1.0, BRAILLE, 1)) == [" █", "██"]


def test_parts_of_a_bar_differ_without_colour() -> None:
    cells = share_cells([0.5, 0.25, 0.001], 8, ASCII)
    assert text([cells]) == ["####==+."]
    assert text([share_cells([0.9, 0.9], 4, ASCII)]) == ["####"]

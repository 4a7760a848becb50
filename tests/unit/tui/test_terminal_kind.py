from __future__ import annotations

import pytest
from rich.segment import Segment
from textual.color import Color

from soup_tui.cells import fit
from soup_tui.glyphs import ASCII, BLOCK, BRAILLE, Glyphs, glyphs_for
from soup_tui.terminal import AsciiOnly, Terminal, to_ascii


@pytest.mark.parametrize(
    ("encoding", "term", "expected"),
    [
        ("utf-8", "xterm-256color", BRAILLE),
        ("UTF8", "", BRAILLE),
        ("utf-8", "linux", BLOCK),
        ("ascii", "xterm", ASCII),
        ("iso-8859-1", "xterm", ASCII),
        (None, "", ASCII),
    ],
)
def test_the_characters_that_a_terminal_has(
    encoding: str | None, term: str, expected: Glyphs
) -> None:
    assert glyphs_for(encoding, term) is expected


def test_over_ssh_it_looks_half_as_often() -> None:
    here = Terminal.detect({}, "utf-8")
    assert (here.remote, here.poll_interval_s, here.colour) == (False, 1.0, True)
    far = Terminal.detect({"SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22"}, "utf-8", mouse=False)
    assert (far.remote, far.poll_interval_s, far.mouse) == (True, 2.0, False)


def test_no_color_and_characters_asked_for() -> None:
    assert not Terminal.detect({"NO_COLOR": "1"}, "utf-8").colour
    assert Terminal.detect({}, "utf-8", glyphs="block").glyphs is BLOCK
    # What the output cannot carry is not drawn, whoever asks for it.
    assert Terminal.detect({}, "ascii", glyphs="braille").glyphs is ASCII


def test_the_last_gate_lets_ascii_through_only_in_the_width_it_had() -> None:
    assert to_ascii("╭─ ok… 日本 ⣿ é") == "+- ok~ ???? ? ?"
    segments = [Segment("│ 日"), Segment("plain")]
    filtered = AsciiOnly().apply(segments, Color(0, 0, 0))
    assert [segment.text for segment in filtered] == ["| ??", "plain"]


@pytest.mark.parametrize(
    ("text", "width", "fitted"),
    [
        ("abc", 5, "abc  "),
        ("abcdef", 4, "abc~"),
        ("日本語", 4, "日~ "),
        ("日本語", 5, "日本~"),
        ("abc", 0, ""),
        ("abc", 1, "~"),
    ],
)
def test_text_takes_exactly_its_cells(text: str, width: int, fitted: str) -> None:
    assert fit(text, width, ASCII) == fitted


def test_figures_stand_at_the_right() -> None:
    assert fit("42", 5, ASCII, right=True) == "   42"

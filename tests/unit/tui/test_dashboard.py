from __future__ import annotations

import io
from typing import Any

from rich.console import Console, RenderableType

from soup_engine.logs import LogEntry
from soup_engine.metrics.snapshot import Percentiles
from soup_tui.cli.dashboard import dashboard_view
from soup_tui.glyphs import ASCII, BRAILLE


def printed(view: RenderableType) -> str:
    output = io.StringIO()
    Console(width=80, file=output).print(view)
    return output.getvalue()


def test_the_table_shows_figures_and_foreign_text_as_text(hand_set: Any) -> None:
    hand_set.set(model="[red]evil[/red]\x1b[31m", running=12, waiting=3, tokens_per_s=231.44)
    hand_set.set_latency("itl", Percentiles(12_000, 0.0042, 0.0123, 0.045, 0.01))
    warning = LogEntry(
        sequence=1, time=0.0, level="WARNING", logger="x", message="[b]careful[/b]\x1b[2J"
    )
    shown = printed(dashboard_view(hand_set.figures, "http://[::1]:8000", [warning], BRAILLE))
    lines = [" ".join(line.split()) for line in shown.splitlines()]

    for line in (
        "state ● ready, up 0 min",
        "model [red]evil[/red] [31m on cpu, float32",
        "address http://[::1]:8000",
        "requests 12 running, 3 waiting",
        "tokens/s 231.4 out, 0.0 in",
        "KV cache ░░░░░░░░░░░░░░░░░░░░ 0% of 2.0 GiB",
        "ITL 4.2 ms 12 ms 45 ms 12,000",
        "TTFT – – – 0",  # noqa: RUF001
        "WARNING: [b]careful[/b] [2J",
    ):
        assert line in lines


def test_a_terminal_without_unicode_gets_ascii(hand_set: Any) -> None:
    shown = printed(dashboard_view(hand_set.figures, "unix:/run/soup", [], ASCII))
    figures = shown.partition("last minute")[0]
    assert figures.isascii()
    assert "." * 20 in figures

"""``soup serve --dashboard``: a live table in the terminal of a headless server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from soup_engine.metrics.snapshot import EngineSnapshot
from soup_tui.formatting import bar, kv_text, latency_rows, plain, uptime
from soup_tui.glyphs import Glyphs, stdout_glyphs

if TYPE_CHECKING:
    from soup_engine.logs import LogEntry
    from soup_engine.runtime import Runtime

_SHOWN_WARNINGS = 3
_BAR_WIDTH = 20


class Dashboard:
    """Takes the terminal between entering and leaving it, and gives it back as it was."""

    def __init__(self, runtime: Runtime, console: Console | None = None) -> None:
        self._runtime = runtime
        self._console = console or Console()
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        self.refresh()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def refresh(self) -> None:
        runtime = self._runtime
        warnings = runtime.logs.entries(limit=_SHOWN_WARNINGS, min_level=logging.WARNING)
        view = dashboard_view(runtime.snapshot(), runtime.address or "", warnings, stdout_glyphs())
        self._live.update(view, refresh=True)


def dashboard_view(
    snapshot: EngineSnapshot, address: str, warnings: Sequence[LogEntry], marks: Glyphs
) -> Group:
    """The table for one snapshot, and the last warnings under it."""
    figures = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    figures.add_column(style="dim")
    figures.add_column()
    for name, value in _figures(snapshot, address, marks):
        figures.add_row(name, Text(value))
    latency = Table(box=box.SIMPLE, padding=(0, 1))
    latency.add_column("last minute")
    for column in ("p50", "p95", "p99", "samples"):
        latency.add_column(column, justify="right", min_width=8)
    for name, cells in latency_rows(snapshot, marks):
        latency.add_row(name, *cells)
    lines = [Text(plain(f"{entry.level}: {entry.message}"), no_wrap=True) for entry in warnings]
    hint = Text("Ctrl+C stops: running requests may finish.", style="dim")
    return Group(figures, latency, *lines, hint)


def _figures(snapshot: EngineSnapshot, address: str, marks: Glyphs) -> list[tuple[str, str]]:
    counters, kv = snapshot.counters, snapshot.kv
    return [
        ("state", f"{marks.dot} {snapshot.state}, up {uptime(snapshot.uptime_s)}"),
        ("model", plain(f"{snapshot.model} on {snapshot.device}, {snapshot.dtype}")),
        ("address", plain(address)),
        ("requests", f"{snapshot.running} running, {snapshot.waiting} waiting"),
        ("total", f"{counters.requests:,} requests, {counters.rejected:,} rejected"),
        ("tokens/s", f"{snapshot.tokens_per_s:,.1f} out, {snapshot.prompt_tokens_per_s:,.1f} in"),
        ("KV cache", f"{bar(kv.used_fraction, _BAR_WIDTH, marks)} {kv_text(kv)}"),
    ]

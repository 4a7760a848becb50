"""Screen 2: percentiles as they move, and why p95 is what it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical

from screens.dialogs import AskText
from screens.frame import Bench, WorkbenchScreen
from soup_engine.metrics.snapshot import WINDOWS_S, EngineSnapshot, Percentiles
from soup_tui.actions import bindings
from soup_tui.formatting import LATENCY_MEASURES, duration, short_duration
from soup_tui.history import Sample
from soup_tui.keymap import Objective
from soup_tui.objective import kept
from soup_tui.why import finished_within, split_of, splits_by_adapter
from soup_tui.widgets.histogram import Histogram
from soup_tui.widgets.line_strip import LineStrip
from soup_tui.widgets.percentile_figures import PercentileFigures
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.row_table import Column, Row, RowTable
from soup_tui.widgets.time_axis import TimeAxis
from soup_tui.widgets.title import Title

_MEASURE_NAMES = {
    "ttft": "TTFT, time to first token",
    "itl": "ITL, time between tokens",
    "e2e": "E2E, accepted to finished",
}
_QUANTILES = ("p99", "p50", "p95")
"""In the order of drawing: p95 lies above the others."""
_WHY_COLUMNS = (
    Column("p95 of", 0),
    Column("n", 5, right=True),
    Column("E2E", 7, right=True),
    Column("queue", 7, right=True),
    Column("prefill", 7, right=True),
    Column("decode", 7, right=True),
    Column("stalls", 7, right=True),
    Column("most", 7, from_width=84),
)


class LatencyScreen(WorkbenchScreen):
    """While the view is frozen, collecting goes on."""

    NAME = "latency"
    VERTICAL_BREAKPOINTS = [(0, "-short"), (34, "-tall")]  # noqa: RUF012 as Textual has it
    BINDINGS: ClassVar[list[BindingType]] = bindings("latency")

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        marks = self.glyphs
        self._window_s = WINDOWS_S[0]
        self._measure = LATENCY_MEASURES[0]
        self._frozen = False
        self._shows_histogram = False
        self._titles = {name: Title(_MEASURE_NAMES[name], marks) for name in LATENCY_MEASURES}
        self._strips = {name: LineStrip(short_duration, marks) for name in LATENCY_MEASURES}
        self._figures = {name: PercentileFigures(marks) for name in LATENCY_MEASURES}
        self._axis = TimeAxis(marks)
        self._rate_title, self._queue_title = Title("tokens/s", marks), Title("waiting", marks)
        self._rate = LineStrip(lambda value: f"{value:,.0f}", marks, id="rate")
        self._queue = LineStrip(lambda value: f"{value:,.0f}", marks, id="queue")
        self._objective = Reading(id="objective")
        self._histogram_title = Title("Histogram", marks)
        self._histogram = Histogram(short_duration, marks)
        self._why_title = Title("Why", marks)
        self._why = RowTable(_WHY_COLUMNS, "No request has finished in this window.", marks)

    def compose_body(self) -> ComposeResult:
        for name in LATENCY_MEASURES:
            yield self._titles[name]
            with Horizontal(classes="strip"):
                yield self._strips[name]
                yield self._figures[name]
        yield self._axis
        with Horizontal(id="load"):
            with Vertical():
                yield self._rate_title
                yield self._rate
            with Vertical():
                yield self._queue_title
                yield self._queue
        yield self._objective
        with Horizontal(id="lower"):
            with Vertical(id="histogram-panel"):
                yield self._histogram_title
                yield self._histogram
            with Vertical(id="why-panel"):
                yield self._why_title
                yield self._why

    def look(self) -> None:
        self.set_class(self._shows_histogram, "-histogram")
        if self._frozen:
            return
        snapshot = self.bridge.snapshot
        for name in LATENCY_MEASURES:
            self._show_measure(name, snapshot)
        history, window = self.bridge.history, self._window_s
        marks = history.marks(window, self._axis.columns)
        self._axis.show(f"-{window // 60} min", marks)
        self._rate.show(
            [history.line(lambda one: one.tokens_per_s or None, window, self._rate.columns)]
        )
        self._queue.show(
            [history.line(lambda one: one.waiting or None, window, self._queue.columns)]
        )
        if snapshot is not None:
            self._rate_title.show(f"{snapshot.tokens_per_s:,.1f} now")
            self._queue_title.show(f"{snapshot.waiting} now, {snapshot.running} running")
        self._show_objective(snapshot)
        self._histogram_title.show(
            f"last {window // 60} min", f"Histogram of {self._measure.upper()}"
        )
        self._histogram.show(history.histogram(self._measure, window))
        self._show_why(snapshot)

    def _show_measure(self, name: str, snapshot: EngineSnapshot | None) -> None:
        strip, history = self._strips[name], self.bridge.history
        strip.show(
            [
                history.line(_quantile(name, quantile), self._window_s, strip.columns)
                for quantile in _QUANTILES
            ]
        )
        found: Percentiles | None = None
        if snapshot is not None:
            found = snapshot.windows.get(self._window_s, {}).get(name)
        samples = 0 if found is None else found.samples
        self._titles[name].show(f"{samples:,} in {self._window_s // 60} min")
        self._figures[name].show(found)

    def _show_objective(self, snapshot: EngineSnapshot | None) -> None:
        objective = self.bench.watch.objective
        goal = f"Objective: {objective.measure.upper()} within {duration(objective.seconds)}"
        alert = f" {self.glyphs.bullet} alert {'on' if objective.alert else 'off'}"
        if snapshot is None:
            self._objective.show(goal + alert)
            return
        found = kept(objective, snapshot, self.bridge.history, self._window_s)
        if found.share is None:
            result = "no requests yet"
        else:
            verdict = "MISSED" if found.missed else "kept" if found.kept else "too few to judge"
            result = f"{verdict}, {found.share:.1%} of {found.samples:,}"
        self._objective.show(f"{goal} {self.glyphs.bullet} {result}{alert}")
        self._objective.set_class(found.missed, "bad")

    def _show_why(self, snapshot: EngineSnapshot | None) -> None:
        if snapshot is None:
            self._why.show([])
            return
        requests = finished_within(snapshot.finished, snapshot.time, self._window_s)
        itl = snapshot.windows.get(self._window_s, {}).get("itl")
        pace_s = None if itl is None else itl.p50
        whole = split_of(requests, pace_s)
        if whole is None:
            self._why_title.show("")
            self._why.show([])
            return
        share = dict(whole.parts)[whole.largest] / whole.e2e_s if whole.e2e_s else 0.0
        self._why_title.show(f"mostly {whole.largest}: {share:.0%} of the p95 request")
        rows = [("all requests", whole)]
        rows += [(split.adapter or "base", split) for split in splits_by_adapter(requests, pace_s)]
        self._why.show(
            [
                Row(
                    f"{number}",
                    (
                        name,
                        f"{split.samples:,}",
                        duration(split.e2e_s) or "",
                        *(duration(seconds) or "" for _, seconds in split.parts),
                        split.largest,
                    ),
                    "" if number else "good",
                )
                for number, (name, split) in enumerate(rows)
            ]
        )

    def copied(self) -> str:
        """The percentiles of the window, as lines of text."""
        return "\n".join(
            "  ".join((name.upper(), *figures.texts)) for name, figures in self._figures.items()
        )

    def action_window(self) -> None:
        self._window_s = WINDOWS_S[(WINDOWS_S.index(self._window_s) + 1) % len(WINDOWS_S)]
        self.bench.watch.window_s = self._window_s
        self.look()

    def action_measure(self) -> None:
        place = LATENCY_MEASURES.index(self._measure) + 1
        self._measure = LATENCY_MEASURES[place % len(LATENCY_MEASURES)]
        self.look()

    def action_lower(self) -> None:
        """Where there is room both are shown, and this changes nothing."""
        self._shows_histogram = not self._shows_histogram
        self.look()

    def action_objective(self) -> None:
        objective = self.bench.watch.objective

        def answered(text: str | None) -> None:
            if text is None:
                return
            changed = parse_objective(text, objective.alert)
            if changed is None:
                self.say("An objective is a measure and a time, such as: ttft 500 ms", "error")
                return
            self.bench.watch.objective = changed
            self.look()

        self.app.push_screen(
            AskText(
                "Objective",
                "A measure (ttft, itl or e2e) and a time in ms or s; 95 % should be within it.",
                f"{objective.measure} {objective.seconds * 1000:g} ms",
            ),
            answered,
        )

    def action_alert(self) -> None:
        before = self.bench.watch.objective
        self.bench.watch.objective = Objective(before.measure, before.seconds, not before.alert)
        self.say(f"Alerts are {'off' if before.alert else 'on'}.")
        self.look()

    def action_freeze(self) -> None:
        self._frozen = not self._frozen
        if self._frozen:
            for title in self._titles.values():
                title.show(f"frozen, {title.note}")
        self.look()

    def action_faster(self) -> None:
        self._change_pace(-1)

    def action_slower(self) -> None:
        self._change_pace(1)

    def _change_pace(self, steps: int) -> None:
        self.say(f"Looking every {self.bench.change_pace(steps):g} s.")


def _quantile(measure: str, name: str) -> Callable[[Sample], float | None]:
    def value(sample: Sample) -> float | None:
        found = sample.latency.get(measure)
        quantile: float | None = None if found is None else getattr(found, name)
        return quantile

    return value


_OBJECTIVE = re.compile(r"(ttft|itl|e2e)\s+(\d+(?:\.\d+)?)\s*(ms|s)?")


def parse_objective(text: str, alert: bool) -> Objective | None:
    """Of ``ttft 500 ms`` or ``e2e 2.5s``; ``None`` when it is none."""
    match = _OBJECTIVE.fullmatch(text.strip().lower())
    if match is None or not (seconds := float(match[2]) / (1 if match[3] == "s" else 1000)):
        return None
    return Objective(match[1], seconds, alert)

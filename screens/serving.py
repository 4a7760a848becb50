"""The first screen: what is served, where, and how it is doing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import Screen
from textual.widgets import Footer

from soup_engine.metrics.snapshot import EngineSnapshot
from soup_tui.formatting import LATENCY_MEASURES, bar, glyphs, kv_text, latency_rows, uptime
from soup_tui.widgets.reading import Reading

_STATES = ("loading", "starting", "ready", "draining", "stopped", "failed")
_COLUMNS = ("p50", "p95", "p99", "samples")
_BAR_WIDTH = 20


class ServingScreen(Screen[None]):
    """State, address and a request to try; load, memory and latency of the last minute."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 as Textual has it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "copy_request", "Copy request", id="serving.copy_request"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._glyphs = glyphs()
        self._request = ""
        # Kept rather than queried: figures may still arrive while the screen goes away.
        self._readings: dict[str, Reading] = {}
        self._endpoint = Vertical(classes="panel", id="endpoint")

    def compose(self) -> ComposeResult:
        with Horizontal(id="top"):
            yield self._reading("state", classes="state-loading")
            yield self._reading("model")
            yield self._reading("uptime", classes="name")
        with VerticalScroll(id="body", can_focus=False):
            with self._endpoint:
                yield self._reading("address")
                yield self._reading("request")
            with Horizontal(id="panels"):
                yield from self._compose_load()
                yield from self._compose_latency()
            yield self._reading("message")
        yield Footer(show_command_palette=False)

    def _compose_load(self) -> ComposeResult:
        with Vertical(classes="panel", id="load") as panel:
            panel.border_title = "Now"
            for key, name in (
                ("throughput", "tokens/s"),
                ("running", "running"),
                ("waiting", "waiting"),
                ("requests", "requests"),
                ("kv", "KV cache"),
            ):
                with Horizontal(classes="row"):
                    yield Reading(name, classes="name")
                    yield self._reading(key, self._glyphs.nothing, "figure")

    def _compose_latency(self) -> ComposeResult:
        with Vertical(classes="panel", id="latency") as panel:
            panel.border_title = "Latency, last minute"
            with Horizontal(classes="row latency"):
                yield Reading(classes="name")
                for column in _COLUMNS:
                    yield Reading(column, classes="figure name")
            for measure in LATENCY_MEASURES:
                with Horizontal(classes="row latency"):
                    yield Reading(measure.upper(), classes="name")
                    for column in _COLUMNS:
                        yield self._reading(f"{measure}-{column}", self._glyphs.nothing, "figure")

    def _reading(self, key: str, text: str = "", classes: str = "") -> Reading:
        """A text that ``_show`` can change later."""
        self._readings[key] = Reading(text, id=key, classes=classes)
        return self._readings[key]

    def on_mount(self) -> None:
        self._show_endpoint("Loading", "", "")
        self._show_state("loading")

    def show_loading(self, stage: str, share: float | None) -> None:
        """How far loading is; ``share`` is from 0 to 1, ``None`` where it is not known."""
        done = "" if share is None else f"{bar(share, _BAR_WIDTH, self._glyphs)} {share:.0%}"
        self._show_endpoint("Loading", stage, done)

    def show_ready(self, address: str, request: str, notes: Sequence[str]) -> None:
        """Where the server answers, and a command that asks it something."""
        self._request = request
        self._show_endpoint("Address", address, request)
        self._show("message", " ".join(notes))

    def show_failure(self, sentence: str) -> None:
        """Why nothing is served."""
        self._show_state("failed")
        self._show_endpoint("Failed", "Nothing is served.", sentence)

    def show_snapshot(self, snapshot: EngineSnapshot) -> None:
        """The figures of now; only those that changed repaint."""
        self._show_state(snapshot.state)
        self._show("model", f"{snapshot.model} on {snapshot.device}, {snapshot.dtype}")
        self._show("uptime", f"up {uptime(snapshot.uptime_s)}")
        self._show("throughput", f"{snapshot.tokens_per_s:,.1f}")
        self._show("running", f"{snapshot.running:,}")
        self._show("waiting", f"{snapshot.waiting:,}")
        counters = snapshot.counters
        self._show("requests", f"{counters.requests:,} in all, {counters.rejected:,} rejected")
        filled = bar(snapshot.kv.used_fraction, _BAR_WIDTH, self._glyphs)
        self._show("kv", f"{filled} {kv_text(snapshot.kv)}")
        for name, cells in latency_rows(snapshot, self._glyphs):
            for column, cell in zip(_COLUMNS, cells, strict=True):
                self._show(f"{name.lower()}-{column}", cell)

    def action_copy_request(self) -> None:
        if self._request:
            self.app.copy_to_clipboard(self._request)
            self.notify("The request is in the clipboard.", markup=False)

    def _show_endpoint(self, title: str, first: str, second: str) -> None:
        self._endpoint.border_title = title
        self._show("address", first)
        self._show("request", second)

    def _show(self, reading: str, text: str) -> None:
        self._readings[reading].show(text)

    def _show_state(self, state: str) -> None:
        reading = self._readings["state"]
        reading.show(f"{self._glyphs.dot} {state}")
        for known in _STATES:
            reading.set_class(state == known, f"state-{known}")

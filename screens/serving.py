"""Screen 1: what is served, where, what it takes, and who is being answered."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.widget import Widget

from screens.dialogs import AskChoice, AskText
from screens.frame import Bench, WorkbenchScreen
from screens.model_chooser import ModelChooser
from soup_engine.errors import ConfigError
from soup_engine.messages import RequestView
from soup_engine.metrics.snapshot import EngineSnapshot
from soup_tui import machine
from soup_tui.actions import bindings
from soup_tui.config import Settings
from soup_tui.formatting import bar, count, duration, kv_text, size, uptime
from soup_tui.machine import Gpu
from soup_tui.model_choices import DEMO, recent_path, remember
from soup_tui.option_line import option_line, settings_from_line
from soup_tui.service import Ability, ServedModel, error_sentence
from soup_tui.steady import Steady
from soup_tui.widgets.line_strip import LineStrip
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.row_table import Column, Row, RowTable
from soup_tui.widgets.share_bar import ShareBar
from soup_tui.widgets.title import Title

_COLUMNS = (
    Column("request", 0),
    Column("adapter", 12),
    Column("state", 9),
    Column("prompt", 7, right=True),
    Column("output", 7, right=True),
    Column("age", 8, right=True),
    Column("tok/s", 7, right=True),
    Column("from", 14, from_width=100),
)
_TONES = {"waiting": "muted", "preempted": "warning"}
_PROGRESS_WIDTH = 30
_LOAD_WINDOW_S = 300


class ServingScreen(WorkbenchScreen):
    """While nothing is served, a model is chosen here."""

    NAME = "serving"
    FILTERS = True
    VERTICAL_BREAKPOINTS = [(0, "-short"), (34, "-tall")]  # noqa: RUF012 as Textual has it
    BINDINGS: ClassVar[list[BindingType]] = bindings("serving")

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._shown = ""
        marks = self.glyphs
        self._address_title = Title("Address", marks)
        self._address = Reading(id="address")
        self._curl = Reading(id="curl", classes="name")
        self._model = Reading(id="model")
        self._detail = Reading(id="detail", classes="name")
        self._notes = Reading(id="notes", classes="warning")
        self._kv_bar, self._kv = ShareBar(marks, id="kv-bar"), Reading(id="kv")
        self._host_bar, self._host = ShareBar(marks, id="host-bar"), Reading(id="host")
        self._ours, self._others = Steady(0.02), Steady(0.05)
        self._of_gpu = {
            "used": Steady(0.01),
            "others": Steady(0.01),
            "utilisation": Steady(0.0, least=0.02),
            "clock": Steady(0.05),
            "power": Steady(0.05),
        }
        self._gpu_bar, self._gpu = ShareBar(marks, id="gpu-bar"), Reading(id="gpu")
        self._load_title = Title("tokens/s", marks, note=f"last {_LOAD_WINDOW_S // 60} min")
        self._load = LineStrip(lambda value: f"{value:,.0f}", marks, id="load-strip")
        self._requests_title = Title("Requests", marks)
        self._requests = RowTable(_COLUMNS, "No requests in flight.", marks, id="requests")
        self._progress = Reading(id="progress")
        self._chooser = ModelChooser(marks, lambda: self.bridge.settings)

    def compose_body(self) -> ComposeResult:
        with Vertical(id="served"):
            with Horizontal(id="panels"):
                with Vertical(id="endpoint"):
                    yield self._address_title
                    yield self._address
                    yield self._curl
                    yield self._model
                    yield self._detail
                with Vertical(id="memory"):
                    yield Title("Memory", self.glyphs)
                    yield from self._memory_row("KV cache", self._kv_bar, self._kv, "kv-row")
                    yield from self._memory_row("host", self._host_bar, self._host, "host-row")
                    yield from self._memory_row("GPU", self._gpu_bar, self._gpu, "gpu-row")
            yield self._notes
            with Vertical(id="load"):
                yield self._load_title
                yield self._load
            yield self._requests_title
            yield self._requests
        with Vertical(id="progress-panel"):
            yield self._progress
        yield self._chooser

    def _memory_row(self, name: str, share: ShareBar, text: Reading, id: str) -> Iterable[Widget]:
        with Horizontal(classes="row memory", id=id):
            yield Reading(name, classes="name")
            yield share
            yield text

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#gpu-row").display = bool(machine.read_gpus())

    def look(self) -> None:
        bridge = self.bridge
        state = "served" if bridge.service is not None else "loading" if bridge.loading else "idle"
        if state != self._shown:
            self._shown = state
            for name in ("served", "loading", "idle"):
                self.set_class(state == name, f"-{name}")
            # What had the focus may be hidden from now on.
            self.call_after_refresh(self.focus_list)
        if state == "loading":
            self._show_progress()
        elif state == "idle":
            failure = None if bridge.error is None else error_sentence(bridge.error)
            self._chooser.look(failure)
        else:
            self._show_service()

    def focus_list(self) -> None:
        """That of the requests, or of the models while nothing is served."""
        if self._shown == "served":
            self._requests.focus()
        elif self._shown == "idle":
            self._chooser.focus_list()

    def footer_keys(self) -> list[tuple[str, str]]:
        keys = super().footer_keys()
        if self.bridge.service is not None:
            return [
                (key, "wake" if text == "sleep" and self._asleep else text) for key, text in keys
            ]
        return [] if self.bridge.loading else [("enter", "serve"), *keys[-2:]]

    @property
    def _asleep(self) -> bool:
        return self.bridge.state in ("sleeping", "waking")

    def _show_progress(self) -> None:
        stage, share = self.bridge.stage or "", self.bridge.share
        self._progress.show("\n".join([stage, *self._share_done(share)]))

    def _share_done(self, share: float | None) -> list[str]:
        if share is None:
            return []
        return [f"{bar(share, _PROGRESS_WIDTH, self.glyphs)} {share:.0%}"]

    def _show_service(self) -> None:
        service, snapshot = self.bridge.service, self.bridge.snapshot
        assert service is not None, "only what is served is shown"
        self._address.show(service.address or "no HTTP server")
        self._curl.show(service.curl)
        self._show_model(service.model)
        if snapshot is None:
            return
        self._address_title.show(f"up {uptime(snapshot.uptime_s)}")
        self._show_memory(snapshot)
        line = self.bridge.history.line(
            lambda one: one.tokens_per_s or None, _LOAD_WINDOW_S, self._load.columns
        )
        self._load.show([line])
        counters = snapshot.counters
        bullet = self.glyphs.bullet
        self._requests_title.show(
            f"{counters.requests:,} accepted {bullet} {counters.rejected:,} rejected {bullet}"
            f" {counters.preemptions:,} preempted",
            "Requests" if not self._filter else f"Requests with {self._filter!r}",
        )
        self._requests.say(self._why_no_rows(snapshot))
        self._requests.show(
            [row for view in snapshot.requests if self._matches(row := self._row(view))]
        )

    def _why_no_rows(self, snapshot: EngineSnapshot) -> str:
        if snapshot.state == "sleeping":
            key = self.bench.preferences.key_name("serving.sleep")
            return f"The engine is asleep, its weights off the device: {key} wakes it up."
        if snapshot.state == "waking":
            stage, share = self.bridge.waking
            return "  ".join(["Waking up", *self._share_done(share), stage])
        if snapshot.state == "failed":
            key = self.bench.preferences.key_name("serving.restart")
            service = self.bridge.service
            can_restart = service is not None and Ability.RESTART not in service.missing
            if not can_restart:
                offer = ""
            elif self.bridge.settings.restart == "on-failure":
                offer = "; it is being started again"
            else:
                offer = f": {key} starts it again"
            return f"The engine has died; the log says why{offer}."
        if self._filter and snapshot.requests:
            return f"No request in flight has {self._filter!r} in it."
        return "No requests in flight."

    def _show_model(self, model: ServedModel) -> None:
        bullet = f" {self.glyphs.bullet} "
        parameters = f", {count(model.num_parameters)} parameters" if model.num_parameters else ""
        self._model.show(f"{model.architecture}{parameters}")
        self._detail.show(
            bullet.join(
                (
                    model.backend,
                    model.device,
                    model.dtype,
                    f"context {model.max_model_len:,}",
                    f"up to {model.max_num_seqs} rows",
                )
            )
        )
        self._notes.show(" ".join(model.notes))
        self._notes.display = bool(model.notes)

    def _show_memory(self, snapshot: EngineSnapshot) -> None:
        kv = snapshot.kv
        total = max(1, kv.row_blocks_total + kv.prefix_blocks_total)
        rows, kept = kv.row_blocks_used / total, kv.prefix_blocks_used / total
        self._kv_bar.show((rows, kept) if rows + kept else (kv.used_fraction,))
        self._kv.show(kv_text(kv))
        memory = machine.read_host_memory()
        ours = self._ours.of(snapshot.memory_rss_bytes)
        others = self._others.of(max(0, memory.total - memory.available - ours))
        self._host_bar.show((ours / memory.total, others / memory.total))
        self._host.show(f"{size(ours)} of {size(memory.total)}")
        if found := machine.read_gpus():
            self._show_gpu(found[0])

    def _show_gpu(self, gpu: Gpu) -> None:
        memory, steady = gpu.memory, self._of_gpu
        others = steady["others"].of(gpu.others_bytes or 0)
        used = steady["used"].of(memory.total - memory.available)
        self._gpu_bar.show((max(0, used - others) / memory.total, others / memory.total))
        parts = [f"{size(used)} of {size(memory.total)}"]
        if gpu.utilisation is not None:
            parts.append(f"{steady['utilisation'].of(gpu.utilisation):.0%}")
        if gpu.clock_mhz is not None:
            parts.append(f"{steady['clock'].of(gpu.clock_mhz):.0f} MHz")
        if gpu.power_w is not None:
            parts.append(f"{steady['power'].of(gpu.power_w):.0f} W")
        if others:
            parts.append(f"{size(others)} others'")
        self._gpu.show(f" {self.glyphs.bullet} ".join(parts))

    def _row(self, view: RequestView) -> Row:
        rate = self.glyphs.nothing if view.tokens_per_s is None else f"{view.tokens_per_s:.1f}"
        name = view.request_id if view.index == 0 else f"{view.request_id} #{view.index + 1}"
        cells = (
            name,
            view.adapter or self.glyphs.nothing,
            view.state,
            f"{view.prompt_tokens:,}",
            f"{view.output_tokens:,}",
            duration(float(round(view.age_s, 1))) or "",
            rate,
            view.label,
        )
        return Row(f"{view.request_id}\n{view.index}", cells, _TONES.get(view.state, ""))

    def _matches(self, row: Row) -> bool:
        return any(self._filter.lower() in cell.lower() for cell in row.cells)

    def select_request(self, request_id: str) -> bool:
        """Put the cursor on a request; False when it is not in flight."""
        self.filter_with("")
        return self._requests.select(f"{request_id}\n0")

    def copied(self) -> str:
        """The command that asks the service something."""
        return "" if self.bridge.service is None else self.bridge.service.curl

    def action_abort(self) -> None:
        selected = self._requests.selected
        service = self.bridge.service
        if self.refuse(Ability.ABORT) or service is None:
            return
        if selected is None:
            self.say("No request is selected.", "warning")
            return
        request_id = selected.partition("\n")[0]

        def abort() -> str:
            ended = service.abort(request_id)
            return f"Aborted {request_id}." if ended else f"{request_id} had ended already."

        self.bridge.command(abort)

    def action_restart(self) -> None:
        if self.bridge.loading or (
            self.bridge.service is not None and self.refuse(Ability.RESTART)
        ):
            return

        def restart(line: str | None) -> None:
            if line is None:
                return
            try:
                self._serve(settings_from_line(line, self.bridge.settings))
            except ConfigError as error:
                self.say(error.message, "error")

        self.app.push_screen(
            AskText(
                "Serve with these settings",
                "As options of soup serve. What runs now may finish first.",
                option_line(self.bridge.settings),
            ),
            restart,
        )

    def action_stop(self) -> None:
        if self.bridge.loading or self.refuse(Ability.STOP):
            return
        timeout_s = self.bridge.settings.drain_timeout
        choices = [
            ("drain", "d", f"drain: running requests may go on for {timeout_s:g} s"),
            ("now", "s", "stop now: they end with an error"),
        ]

        def stop(chosen: str | None) -> None:
            if chosen is not None and self.bridge.service is not None:
                self.bridge.stop(timeout_s if chosen == "drain" else 0.0)
                self.show_status()
                self.look()

        self.app.push_screen(AskChoice("Stop serving", choices, self.glyphs), stop)

    def action_sleep(self) -> None:
        service = self.bridge.service
        if self.bridge.loading or self.refuse(Ability.SLEEP) or service is None:
            return
        if self._asleep:
            self.bridge.wake()
            return
        timeout_s = self.bridge.settings.drain_timeout

        def sleep(chosen: str | None) -> None:
            if chosen is not None:
                self.bridge.command(lambda: service.sleep(timeout_s if chosen == "drain" else 0.0))

        if not self.bridge.requests_in_flight:
            sleep("drain")
            return
        choices = [
            ("drain", "d", "drain: running requests may go on for the drain timeout"),
            ("now", "s", "sleep now: they end with an error"),
        ]
        self.app.push_screen(AskChoice("Put the engine to sleep", choices, self.glyphs), sleep)

    def action_choose(self) -> None:
        """Choose by a path or id; while nothing is served there is a list, too."""
        if self.bridge.loading or (
            self.bridge.service is not None and self.refuse(Ability.RESTART)
        ):
            return
        self._chooser.ask_for_path(self._serve_source)

    def action_demo(self) -> None:
        if not self.bridge.loading and not (
            self.bridge.service is not None and self.refuse(Ability.RESTART)
        ):
            self._serve_source(DEMO)

    def on_model_chooser_chosen(self, message: ModelChooser.Chosen) -> None:
        self._serve_source(message.source)

    def _serve_source(self, source: str) -> None:
        demo = source == DEMO
        self._serve(self.bridge.settings.serving(None if demo else source))

    def _serve(self, settings: Settings) -> None:
        if settings.model is not None:
            remember(recent_path(), settings.model)
        self.bridge.open(settings, self.bridge.settings.drain_timeout)
        self.show_status()
        self.look()

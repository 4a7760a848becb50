"""Screen 3: the adapters, how they do, and what can be done with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from screens.compare import CompareScreen
from screens.dialogs import AskText
from screens.frame import Bench, WorkbenchScreen
from soup_engine.messages import AdapterView
from soup_engine.metrics.snapshot import EngineSnapshot
from soup_engine.user_paths import with_home
from soup_tui.actions import bindings
from soup_tui.formatting import duration, size
from soup_tui.path_completion import FolderSuggester
from soup_tui.service import Ability, Service
from soup_tui.why import finished_within, split_of
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.row_table import Column, Row, RowTable
from soup_tui.widgets.title import Title

MAX_COMPARED = 4
_WINDOW_S = 900
_COLUMNS = (
    Column("", 2),
    Column("adapter", 0),
    Column("rank", 4, right=True),
    Column("size", 7, right=True),
    Column("rev", 3, right=True),
    Column("status", 9),
    Column("requests", 8, right=True),
    Column("tok/s", 6, right=True),
    Column("p95", 7, right=True),
    Column("accepted", 8, right=True, from_width=96),
    Column("loaded in", 9, right=True, from_width=96),
    Column("origin", 8, from_width=110),
)
_TONES = {"ready": "", "loading": "warning", "unloading": "muted", "failed": "bad"}


class AdaptersScreen(WorkbenchScreen):
    """The base model is the first row."""

    NAME = "adapters"
    FILTERS = True
    BINDINGS: ClassVar[list[BindingType]] = bindings("adapters")

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        marks = self.glyphs
        self._marked: list[str] = []
        self._title = Title("Adapters", marks)
        self._table = RowTable(_COLUMNS, "Nothing is served now.", marks, id="adapters")
        self._detail_title = Title("Selected", marks)
        self._detail = Reading(id="detail", lines=True)

    def compose_body(self) -> ComposeResult:
        yield self._title
        yield self._table
        yield self._detail_title
        yield self._detail

    def on_row_table_cursor_moved(self) -> None:
        self._show_detail()

    def look(self) -> None:
        service, snapshot = self.bridge.service, self.bridge.snapshot
        if service is None or snapshot is None:
            self._table.show([])
            self._title.show("")
            self._detail.show("")
            return
        views = self.bridge.adapters.views
        known = {service.model.name, *(view.name for view in views)}
        self._marked = [name for name in self._marked if name in known]
        rows = [self._base_row(service, snapshot)]
        rows += [self._row(view, snapshot) for view in views]
        rows += [
            Row(f"refused {name}", self._padded(name, "refused"), "bad")
            for name in self.bridge.adapters.refused
            if all(view.name != name for view in views)
        ]
        self._table.show([row for row in rows if self._matches(row)])
        self._title.show(self._note(service))
        self._show_detail()

    def _note(self, service: Service) -> str:
        if (reason := service.missing.get(Ability.ADAPTERS)) is not None:
            return reason
        views = self.bridge.adapters.views
        active = next((view for view in views if view.active), None)
        if active is None:
            return "the base answers what names nothing"
        swap = "" if active.last_swap_ms is None else f", swapped in {active.last_swap_ms:.2f} ms"
        return f"{active.name} is active{swap}"

    def _base_row(self, service: Service, snapshot: EngineSnapshot) -> Row:
        rate, p95 = self._speed(None, snapshot)
        active = all(not view.active for view in self.bridge.adapters.views)
        nothing = self.glyphs.nothing
        requests = snapshot.counters.requests - sum(v.requests for v in self.bridge.adapters.views)
        cells = (
            self._mark_of(service.model.name, active),
            service.model.name,
            *(nothing,) * 3,
            "base",
            f"{max(0, requests):,}",
            rate,
            p95,
            self._accepted(None, snapshot),
            nothing,
            "",
        )
        return Row("base", cells)

    def _row(self, view: AdapterView, snapshot: EngineSnapshot) -> Row:
        nothing = self.glyphs.nothing
        rate, p95 = self._speed(view.name, snapshot)
        status = "reloading" if view.reloading else view.status.value
        cells = (
            self._mark_of(view.name, view.active),
            view.name,
            nothing if view.rank is None else str(view.rank),
            nothing if view.size_bytes is None else size(view.size_bytes),
            str(view.revision),
            status,
            f"{view.requests:,}",
            rate,
            p95,
            self._accepted(view.name, snapshot),
            nothing if view.last_load_ms is None else f"{view.last_load_ms:,.0f} ms",
            view.origin,
        )
        tone = "warning" if view.reason else _TONES.get(view.status.value, "")
        return Row(f"adapter {view.name}", cells, "bad" if status == "failed" else tone)

    def _mark_of(self, name: str, active: bool) -> str:
        marked = "+" if name in self._marked else " "
        return f"{self.glyphs.active if active else ' '}{marked}"

    def _padded(self, name: str, status: str) -> tuple[str, ...]:
        nothing = self.glyphs.nothing
        return ("", name, nothing, nothing, nothing, status, *(nothing,) * 5, "watched")

    def _speed(self, adapter: str | None, snapshot: EngineSnapshot) -> tuple[str, str]:
        """Tokens a second now, and the p95 of E2E."""
        rates = [one.tokens_per_s or 0.0 for one in snapshot.requests if one.adapter == adapter]
        ended = finished_within(snapshot.finished, snapshot.time, _WINDOW_S)
        split = split_of([one for one in ended if one.adapter == adapter], None)
        p95 = self.glyphs.nothing if split is None else duration(split.e2e_s) or ""
        return f"{sum(rates):.1f}" if rates else self.glyphs.nothing, p95

    def _accepted(self, adapter: str | None, snapshot: EngineSnapshot) -> str:
        """Share of the drafted tokens that was accepted."""
        known = () if snapshot.speculation is None else snapshot.speculation.adapters
        rates = [one.counts.acceptance_rate for one in known if one.adapter == adapter]
        return f"{rates[0]:.0%}" if rates and rates[0] is not None else self.glyphs.nothing

    def _matches(self, row: Row) -> bool:
        return self._filter.lower() in row.cells[1].lower()

    def _show_detail(self) -> None:
        key = self._table.selected or ""
        refused = self.bridge.adapters.refused
        view = self._selected_view()
        if view is not None:
            self._detail.show("\n".join(_about(view, self.glyphs.nothing)))
        elif (name := key.removeprefix("refused ")) in refused:
            self._detail.show(f"Not loaded: {refused[name]}")
        elif key == "base" and self.bridge.service is not None:
            self._detail.show(f"The model itself: {self.bridge.service.model.source}")
        else:
            self._detail.show("")

    def _selected_view(self) -> AdapterView | None:
        name = (self._table.selected or "").removeprefix("adapter ")
        return next((view for view in self.bridge.adapters.views if view.name == name), None)

    def copied(self) -> str:
        view = self._selected_view()
        return "" if view is None else view.name

    def _wanted(self) -> tuple[Service, AdapterView] | None:
        """The service and the selected adapter; says so where there is none."""
        service = self.bridge.service
        if self.refuse(Ability.ADAPTERS) or service is None:
            return None
        view = self._selected_view()
        if view is None:
            self.say("Select an adapter first.", "warning")
            return None
        return service, view

    def action_activate(self) -> None:
        if self._table.selected == "base":
            self.action_base()
        elif (wanted := self._wanted()) is not None:
            self._activate(wanted[0], wanted[1].name)

    def action_base(self) -> None:
        service = self.bridge.service
        if not self.refuse(Ability.ADAPTERS) and service is not None:
            self._activate(service, None)

    def _activate(self, service: Service, name: str | None) -> None:
        def activate() -> str:
            took_ms = service.activate(name)
            took = "" if took_ms is None else f", in {took_ms:.2f} ms"
            return f"{'The base' if name is None else name} is active{took}."

        self.bridge.command(activate)

    def action_load(self) -> None:
        service = self.bridge.service
        if self.refuse(Ability.ADAPTERS) or service is None:
            return

        def with_path(path: str | None) -> None:
            if path is None or not path.strip():
                return
            folder = str(with_home(path.strip()))
            self.app.push_screen(
                AskText("Name of the adapter", "What requests call it.", Path(folder).name),
                lambda name: None if not name else self._load(service, name.strip(), folder),
            )

        self.app.push_screen(
            AskText(
                "Load an adapter",
                "Folder with adapter_config.json; right arrow completes the path.",
                suggester=FolderSuggester(),
            ),
            with_path,
        )

    def _load(self, service: Service, name: str, folder: str, replace: bool = False) -> None:
        self.bridge.command(lambda: service.load_adapter(name, folder, replace=replace))

    def action_reload(self) -> None:
        if (wanted := self._wanted()) is not None:
            service, view = wanted
            self._load(service, view.name, view.path, replace=True)

    def action_unload(self) -> None:
        if (wanted := self._wanted()) is not None:
            service, view = wanted
            self.bridge.command(lambda: f"{view.name}: {service.unload_adapter(view.name)}")

    def action_mark(self) -> None:
        view, service = self._selected_view(), self.bridge.service
        if service is None or (view is None and self._table.selected != "base"):
            return
        name = service.model.name if view is None else view.name
        if name in self._marked:
            self._marked.remove(name)
        elif len(self._marked) == MAX_COMPARED:
            self.say(f"At most {MAX_COMPARED} can be compared.", "warning")
        else:
            self._marked.append(name)
        self.look()

    def action_compare(self) -> None:
        service = self.bridge.service
        if self.refuse(Ability.CHAT) or service is None:
            return
        if len(self._marked) < 2:
            key = self.bench.preferences.key_name("adapters.mark")
            self.say(f"Mark two or more with {key} first.", "warning")
            return
        names: Sequence[str] = tuple(self._marked)
        self.app.push_screen(
            AskText("Compare", "A prompt that all of them answer, in the same batch."),
            lambda prompt: None if not prompt else self._compare(service, names, prompt),
        )

    def _compare(self, service: Service, names: Sequence[str], prompt: str) -> None:
        self.app.push_screen(CompareScreen(service, names, prompt, self.glyphs))


def _about(view: AdapterView, nothing: str) -> list[str]:
    """What the columns do not say."""
    lines = [view.path]
    if view.reason:
        lines.append(view.reason)
    parts = [
        f"modules {', '.join(view.target_modules) or nothing}",
        f"content {(view.content_hash or nothing)[:12]}",
    ]
    if view.aliases:
        parts.append(f"also {', '.join(view.aliases)}")
    if view.running:
        parts.append(f"{view.running} running")
    if view.earlier_revisions:
        parts.append(f"{view.earlier_revisions} earlier revisions still in use")
    return [*lines, "  ".join(parts), *view.warnings]

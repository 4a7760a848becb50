"""Screen 4: exports: what is made from the model and its adapters, how far that is, and how well
it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from screens.dialogs import AskChoice, ShowText, ask_text
from screens.frame import Bench, WorkbenchScreen
from soup_engine.export.state import ExportView
from soup_tui.actions import bindings
from soup_tui.exports import default_target, report_rows, share_done, state_of, tone_of
from soup_tui.formatting import duration, plain, size
from soup_tui.path_completion import FolderSuggester
from soup_tui.service import Ability, ExportOrder, Service
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.row_table import Column, Row, RowTable
from soup_tui.widgets.share_bar import ShareBar
from soup_tui.widgets.title import Title

_COLUMNS = (
    Column("state", 10),
    Column("source", 0),
    Column("format", 15),
    Column("stage", 24, from_width=100),
    Column("tensors", 9, right=True),
    Column("speed", 10, right=True),
    Column("left", 8, right=True),
)
_NAME_WIDTH = 11
_OTHER = "another"
_FORMATS = {
    "merge": "a model of its own in safetensors, the adapter merged into its base",
    "gguf": "one file for llama.cpp and Ollama",
    "gguf-lora": "the adapter alone, for llama.cpp beside its base",
    "onnx": "for ONNX Runtime",
    "gptq": "safetensors of few bits, by calibration",
    "awq": "safetensors of 4 bits, by calibration",
    "tensorrt": "an engine for TensorRT-LLM",
}
_OF_ADAPTERS = ("merge", "gguf-lora")


@dataclass(frozen=True, slots=True)
class _Source:
    """Something to export.

    Attributes:
        base: of an adapter, where known.
        is_model: it is no adapter, so far as is known.
    """

    name: str
    path: str
    base: str | None = None
    is_model: bool = False


class ExportScreen(WorkbenchScreen):
    """The newest job is the first row."""

    NAME = "export"
    FILTERS = True
    BINDINGS: ClassVar[list[BindingType]] = bindings("export")

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        marks = self.glyphs
        self._verifies = True
        self._title = Title("Exports", marks)
        self._table = RowTable(_COLUMNS, "", marks, id="jobs")
        self._detail_title = Title("Selected", marks)
        self._share = ShareBar(marks, id="share")
        self._detail = Reading(id="detail", lines=True)

    def compose_body(self) -> ComposeResult:
        yield self._title
        yield self._table
        yield self._detail_title
        yield self._share
        yield self._detail

    def on_row_table_cursor_moved(self) -> None:
        self._show_detail()

    def look(self) -> None:
        key = self.bench.preferences.key_name("export.start")
        served = self.bridge.service is not None
        self._table.say(f"No exports; {key} begins one." if served else "Nothing is served now.")
        rows = [self._row(view) for view in reversed(self.bridge.exports)]
        self._table.show([row for row in rows if self._matches(row)])
        self._title.show(self._note())
        self._show_detail()

    def _note(self) -> str:
        service = self.bridge.service
        if service is None:
            return ""
        if (reason := service.missing.get(Ability.EXPORTS)) is not None:
            return reason
        return f"new ones are {'' if self._verifies else 'not '}compared with their source"

    def _row(self, view: ExportView) -> Row:
        nothing, progress = self.glyphs.nothing, view.progress
        going = not view.state.is_final
        counts = going and progress.tensors_total
        rate, left = progress.bytes_per_s, progress.seconds_left
        cells = (
            state_of(view),
            PurePath(view.source).name or view.source,
            f"{view.format} {view.quant}",
            progress.stage if going and progress.stage else nothing,
            f"{progress.tensors_done}/{progress.tensors_total}" if counts else nothing,
            f"{size(rate)}/s" if going and rate is not None else nothing,
            (duration(left) if going else None) or nothing,
        )
        return Row(view.id, cells, tone_of(view))

    def _matches(self, row: Row) -> bool:
        return any(self._filter.lower() in cell.lower() for cell in row.cells[:3])

    def _show_detail(self) -> None:
        view = self._selected_view()
        going = view is not None and not view.state.is_final
        share = share_done(view.progress) if view is not None and going else None
        self._share.set_class(share is None, "-hidden")
        self._share.show(() if share is None else (share,))
        self._detail_title.show("" if view is None else view.id)
        self._detail.show("" if view is None else "\n".join(_lines(view)))

    def _selected_view(self) -> ExportView | None:
        selected = self._table.selected
        return next((view for view in self.bridge.exports if view.id == selected), None)

    def copied(self) -> str:
        view = self._selected_view()
        return "" if view is None else view.error or view.result or view.target

    def action_report(self) -> None:
        view = self._selected_view()
        if view is None:
            self.say("Select an export first.", "warning")
        else:
            self.app.push_screen(ShowText("Export", "\n".join(_lines(view))))

    def action_verify(self) -> None:
        self._verifies = not self._verifies
        self.look()

    def action_cancel(self) -> None:
        service, view = self.bridge.service, self._selected_view()
        if self.refuse(Ability.EXPORTS) or service is None:
            return
        if view is None or view.state.is_final:
            self.say("Select an export that has not ended.", "warning")
            return
        self.bridge.command(lambda: service.cancel_export(view.id))

    def action_start(self) -> None:
        service = self.bridge.service
        if not self.refuse(Ability.EXPORTS) and service is not None:
            self.run_worker(self._ask_and_start(service))

    async def _ask_and_start(self, service: Service) -> None:
        """Ask for all that an export needs, one thing after the other; escape ends it."""
        source = await self._ask_source(service)
        if source is None:
            return
        types = service.export_types
        formats = [name for name in types if not (source.is_model and name in _OF_ADAPTERS)]
        format_ = await self._ask_choice(
            "Format", [(name, f"{name:<10} {_FORMATS.get(name, '')}") for name in formats], "gguf"
        )
        if format_ is None:
            return
        quant = await self._ask_choice("Weights", [(name, name) for name in types[format_]])
        if quant is None:
            return
        target = await ask_text(
            self.app,
            "Target",
            "File or folder to make.",
            default_target(source.name, format_, quant),
        )
        if target:
            order = ExportOrder(
                source=source.path,
                target=target,
                format=format_,
                quant=quant,
                base=source.base,
                verify=self._verifies,
            )
            self.bridge.command(lambda: service.start_export(order))

    async def _ask_source(self, service: Service) -> _Source | None:
        known = self._sources(service)
        choices = [(str(number), source.name) for number, source in enumerate(known)]
        chosen = await self._ask_choice(
            "Export what", [*choices, (_OTHER, f"another folder{self.glyphs.ellipsis}")]
        )
        if chosen is None:
            return None
        if chosen != _OTHER:
            return known[int(chosen)]
        path = await ask_text(
            self.app,
            "Export what",
            "Folder of a model or of a LoRA adapter; right arrow completes the path.",
            suggester=FolderSuggester(),
        )
        if path == "":
            self.app.notify("No folder was named, so nothing is exported.")
        return _Source(PurePath(path).name, path) if path else None

    def _sources(self, service: Service) -> list[_Source]:
        """The served model, by its name where its folder is not known, and the adapters."""
        model = service.model
        found = [_Source(model.name, model.source or model.name, is_model=True)]
        base = model.source or None
        return found + [_Source(v.name, v.path, base) for v in self.bridge.adapters.views]

    async def _ask_choice(
        self, title: str, choices: Sequence[tuple[str, str]], selected: str | None = None
    ) -> str | None:
        rows = [(result, "", text) for result, text in choices]
        return await self.app.push_screen_wait(
            AskChoice(title, rows, self.glyphs, selected=selected)
        )


def _lines(view: ExportView) -> list[str]:
    return [f"{name:<{_NAME_WIDTH}} {plain(text)}" for name, text in report_rows(view)]

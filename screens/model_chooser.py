"""The part of the Serving screen where a model is chosen while nothing is served."""

from __future__ import annotations

from collections.abc import Callable

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message

from screens.dialogs import AskText
from soup_tui import machine
from soup_tui.config import Settings
from soup_tui.formatting import size
from soup_tui.glyphs import Glyphs
from soup_tui.machine import Memory
from soup_tui.memory_estimate import MemoryEstimate, estimate
from soup_tui.model_choices import DEMO, Choice, choices, recent_path
from soup_tui.path_completion import FolderSuggester
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.row_table import Column, Row, RowTable
from soup_tui.widgets.share_bar import ShareBar
from soup_tui.widgets.title import Title

_COLUMNS = (Column("model", 0), Column("found in", 40))


class ModelChooser(Vertical):
    """Models found on this machine, and what the selected one will need.

    Args:
        settings: those that would serve it.
    """

    class Chosen(Message):
        def __init__(self, source: str) -> None:
            super().__init__()
            self.source = source

    def __init__(self, glyphs: Glyphs, settings: Callable[[], Settings]) -> None:
        super().__init__(id="chooser")
        self._settings = settings
        self._glyphs = glyphs
        self._choices: tuple[Choice, ...] | None = None
        self._failure = Reading(id="failure", classes="bad")
        self._table = RowTable(_COLUMNS, "No models were found.", glyphs, id="models")
        self._title = Title("Memory it will need", glyphs)
        self._bar = ShareBar(glyphs)
        self._needs = Reading(id="needs")

    def compose(self) -> ComposeResult:
        yield self._failure
        yield Title("Choose a model", self._glyphs, note="enter serves it")
        yield self._table
        yield self._title
        yield self._bar
        yield self._needs

    def look(self, failure: str | None) -> None:
        """Show the choices, and why the last one could not be served."""
        self._failure.display = failure is not None
        self._failure.show(failure or "")
        if self._choices is None:
            self._choices = choices(recent_path())
            rows = [Row(choice.source, (choice.source, choice.found)) for choice in self._choices]
            self._table.show(rows)
            self._show_needs()

    def focus_list(self) -> None:
        self._table.focus()

    def on_show(self) -> None:
        # What is on the disk may have changed since the list was last up.
        self._choices = None

    def on_row_table_cursor_moved(self) -> None:
        self._show_needs()

    def _show_needs(self) -> None:
        selected = next(
            (choice for choice in self._choices or () if choice.source == self._table.selected),
            None,
        )
        found = None
        if selected is not None and selected.folder is not None:
            found = estimate(selected.folder, self._settings())
        memory = device_memory()
        if found is None:
            self._bar.show((1 - memory.available / memory.total,))
            unknown = (
                "The demo needs 1.1 GiB."
                if selected is not None and selected.source == DEMO
                else "Its files do not say what it needs."
            )
            self._needs.show(f"{unknown} {size(memory.available)} are free.")
            return
        total = memory.total
        used = total - memory.available
        parts = (used, found.weights, found.kv_cache, found.adapters)
        self._bar.show([part / total for part in parts])
        self._needs.show(needs_text(found, memory))

    def key_enter(self) -> None:
        if self._table.selected is not None:
            self.post_message(self.Chosen(self._table.selected))

    def ask_for_path(self, then: Callable[[str], None]) -> None:
        def answered(text: str | None) -> None:
            if text is not None and text.strip():
                then(text.strip())

        self.app.push_screen(
            AskText(
                "Model to serve",
                "Path of a folder, or a Hub id such as org/name; right arrow completes a path.",
                suggester=FolderSuggester(),
            ),
            answered,
        )


def device_memory() -> Memory:
    """Of the device that a model is put on when nothing else is said."""
    found = machine.read_gpus()
    return found[0].memory if found else machine.read_host_memory()


def needs_text(found: MemoryEstimate, memory: Memory) -> str:
    """What a model needs against what there is, in a sentence."""
    context = "" if found.context is None else f" for one row of {found.context:,} tokens"
    adapters = f" + adapters {size(found.adapters)}" if found.adapters else ""
    verdict = (
        "" if found.total <= memory.available else " That is more than there is: it may not fit."
    )
    return (
        f"weights {size(found.weights)} + keys and values {size(found.kv_cache)}{context}"
        f"{adapters} = {size(found.total)} of {size(memory.available)} free.{verdict}"
    )

"""Screen 5: speculative decoding: what is drafted, what of it is accepted, and whether it pays."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from screens.dialogs import AskChoice, ask_text
from screens.frame import Bench, WorkbenchScreen
from soup_engine.config import SpeculativeConfig
from soup_engine.metrics.snapshot import AdapterSpeculation, SpeculationView
from soup_tui.actions import bindings
from soup_tui.drafts import METHODS
from soup_tui.glyphs import Glyphs
from soup_tui.path_completion import FolderSuggester
from soup_tui.service import Ability, Service
from soup_tui.widgets.line_strip import LineStrip
from soup_tui.widgets.position_bars import PositionBars
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.row_table import Column, Row, RowTable
from soup_tui.widgets.title import Title

_COLUMNS = (
    Column("adapter", 16),
    Column("drafts", 8, right=True),
    Column("accepted", 9, right=True),
    Column("a draft", 8, right=True),
    Column("measured", 9, right=True),
    Column("state", 0),
)
_CHOICES = (
    ("ngram", "r", "by what the text repeats: no model, for answers that quote"),
    ("draft_model", "m", "by a smaller model of the same family"),
    ("off", "o", "nothing: plain decoding"),
)
_NGRAM = 3
"""Tokens that have to be the same before what followed them is drafted."""


class DraftsScreen(WorkbenchScreen):
    """Figures are since the start of the engine, where nothing else is said."""

    NAME = "drafts"
    BINDINGS: ClassVar[list[BindingType]] = bindings("drafts")

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        marks = self.glyphs
        self._title = Title("Drafts", marks)
        self._state = Reading(id="state", lines=True)
        self._acceptance = LineStrip(lambda value: f"{value:.0%}", marks, id="acceptance")
        self._positions = PositionBars(marks, id="positions")
        self._adapters = RowTable(_COLUMNS, "", marks, id="adapters")

    def compose_body(self) -> ComposeResult:
        yield self._title
        yield self._state
        yield Title("Accepted over time", self.glyphs)
        yield self._acceptance
        yield Title("Accepted by position", self.glyphs)
        yield self._positions
        yield Title("By adapter", self.glyphs)
        yield self._adapters

    def look(self) -> None:
        snapshot, key = self.bridge.snapshot, self.bench.preferences.key_name("drafts.switch")
        view = None if snapshot is None else snapshot.speculation
        if view is None:
            self._title.show("")
            self._state.show(self._why_nothing(key))
            self._acceptance.show([])
            self._positions.show([])
            self._adapters.show([])
            return
        self._title.show(METHODS.get(view.method, view.method))
        self._state.show("\n".join(summary_lines(view, self.glyphs)))
        shares = [one.accepted / one.drafted if one.drafted else None for one in view.intervals]
        self._acceptance.show([shares[-self._acceptance.columns :]])
        counts = view.counts
        self._positions.show(
            [accepted / max(counts.drafts, 1) for accepted in counts.accepted_by_position]
        )
        self._adapters.show([_row(one, self.glyphs) for one in view.adapters])

    def _why_nothing(self, key: str) -> str:
        service = self.bridge.service
        if service is None:
            return "Nothing is served now."
        nothing = "Nothing was drafted: every token comes from the model itself"
        reason = service.missing.get(Ability.DRAFTS)
        return f"{nothing}; {key} begins it." if reason is None else f"{nothing}. {reason}"

    def action_switch(self) -> None:
        service = self.bridge.service
        if not self.refuse(Ability.DRAFTS) and service is not None:
            self.run_worker(self._ask_and_switch(service))

    async def _ask_and_switch(self, service: Service) -> None:
        """Ask what drafts and how much; escape ends it."""
        method = await self.app.push_screen_wait(AskChoice("Drafts", _CHOICES, self.glyphs))
        if method is None:
            return
        draft = None
        if method == "draft_model":
            hint = "Folder of the draft model; right arrow completes the path."
            draft = await ask_text(self.app, "Draft model", hint, suggester=FolderSuggester())
            if not draft:
                return
        most = SpeculativeConfig().num_tokens
        if method != "off":
            text = await ask_text(self.app, "Drafts", "Most tokens of a draft.", str(most))
            if not text:
                return
            if not text.isascii() or not text.isdigit():
                self.say(f"{text} is not a number of tokens.", "warning")
                return
            most = int(text)
        ngram = _NGRAM if method == "ngram" else None
        self.bridge.command(
            lambda: service.speculate(
                SpeculativeConfig(draft_model=draft, ngram=ngram, num_tokens=most)
            )
        )


def summary_lines(view: SpeculationView, marks: Glyphs) -> list[str]:
    """What is drafted, what became of it, and what it gains, a line each."""
    counts, nothing = view.counts, marks.nothing
    drafted = f"at most {view.num_tokens} tokens a step"
    if view.draft is not None:
        drafted += f", by {view.draft}"
    rate, length = counts.acceptance_rate, counts.mean_acceptance_length
    accepted = (
        f"{counts.accepted:,} of {counts.drafted:,} tokens ({rate:.0%}); a draft yields "
        f"{length:.2f} tokens"
        if rate is not None and length is not None
        else nothing
    )
    gains = f"measured {_times(view.measured_speedup, marks)}, modelled "
    gains += _times(view.modelled_speedup, marks)
    if view.measured_speedup is not None and view.measured_speedup < 1.0:
        gains += "; below 1 drafts do not pay off"
    lines = [f"drafted    {drafted}", f"accepted   {accepted}", f"speed-up   {gains}"]
    return lines + [f"note       {note}" for note in view.notes]


def _row(one: AdapterSpeculation, marks: Glyphs) -> Row:
    counts = one.counts
    rate, length = counts.acceptance_rate, counts.mean_acceptance_length
    cells = (
        "base" if one.adapter is None else one.adapter,
        f"{counts.drafts:,}",
        marks.nothing if rate is None else f"{rate:.0%}",
        marks.nothing if length is None else f"{length:.2f}",
        _times(one.measured_speedup, marks),
        one.reason or "drafts",
    )
    key = "base" if one.adapter is None else f"adapter {one.adapter}"
    return Row(key, cells, "muted" if one.reason else "")


def _times(factor: float | None, marks: Glyphs) -> str:
    return marks.nothing if factor is None else f"{factor:.2f} x"

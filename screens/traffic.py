"""Screen 7: traffic of our own making, for trying things out."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from screens.dialogs import AskText
from screens.frame import Bench, WorkbenchScreen
from soup_engine.errors import ConfigError
from soup_engine.messages import AdapterStatus
from soup_engine.user_paths import with_home
from soup_tui.actions import bindings
from soup_tui.formatting import duration
from soup_tui.service import Ability, Service
from soup_tui.traffic import MAX_STREAMS, PROMPTS, Traffic, TrafficPlan, read_prompts
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.row_table import Column, Row, RowTable
from soup_tui.widgets.title import Title

_COLUMNS = (
    Column("#", 3, right=True),
    Column("adapter", 14),
    Column("tokens", 6, right=True),
    Column("time", 8, right=True),
    Column("prompt", 0),
)
_MIXES = ("active", "base", "all")


class TrafficScreen(WorkbenchScreen):
    """The traffic goes on while other screens are up, and ends with the service."""

    NAME = "traffic"
    BINDINGS: ClassVar[list[BindingType]] = bindings("traffic")

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        marks = self.glyphs
        self._plan = TrafficPlan()
        self._mix = _MIXES[0]
        self._source = f"{len(PROMPTS)} prompts of our own"
        self._traffic: Traffic | None = None
        self._sent_to: Service | None = None
        self._settings = Reading(id="settings")
        self._target = Reading(id="target", classes="name")
        self._counts_title, self._counts = (
            Title("Since it was started", marks),
            Reading(id="counts"),
        )
        self._error = Reading(id="error", classes="bad")
        self._streams = RowTable(_COLUMNS, "", marks, id="streams")

    def compose_body(self) -> ComposeResult:
        yield Title("Traffic", self.glyphs)
        yield self._settings
        yield self._target
        yield self._counts_title
        yield self._counts
        yield self._error
        yield Title("Streams", self.glyphs)
        yield self._streams

    def look(self) -> None:
        traffic, plan = self._traffic, self._plan
        if traffic is not None and self.bridge.service is not self._sent_to:
            self._end()
            traffic = None
        adapters = {
            "active": "the active adapter, or the base",
            "base": "the base",
            "all": "the base and all adapters in turn",
        }[self._mix]
        state = "stopped" if traffic is None else "running"
        bullet = self.glyphs.bullet
        self._settings.show(
            f"{self.glyphs.dot} {state} {bullet} {plan.streams} streams {bullet} answers up to"
            f" {plan.max_tokens} tokens {bullet} {self._source}"
        )
        self._target.show(f"sent to {adapters}")
        self._settings.set_class(traffic is not None, "good")
        key = self.bench.preferences.key_name("traffic.switch")
        self._streams.say(f"No traffic; {key} starts it.")
        if traffic is None:
            self._streams.show([])
            return
        counts = traffic.counts
        self._counts.show(
            f"{counts.sent:,} sent {bullet} {counts.finished:,} answered {bullet}"
            f" {counts.failed:,} failed {bullet} {counts.output_tokens:,} tokens"
        )
        self._error.show(counts.error or "")
        self._streams.show(
            [
                Row(
                    str(one.number),
                    (
                        str(one.number),
                        one.adapter or self.glyphs.nothing,
                        f"{one.output_tokens:,}",
                        duration(float(round(one.duration_s, 1))) or "",
                        one.prompt,
                    ),
                )
                for one in traffic.streams()
            ]
        )

    def on_unmount(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._traffic is not None:
            self._traffic.stop()
            self._traffic = None

    def action_switch(self) -> None:
        if self._traffic is not None:
            self._end()
        elif not self.refuse(Ability.CHAT) and self.bridge.service is not None:
            self._follow(replace(self._plan, adapters=self._adapters()))
            self._sent_to = self.bridge.service
            self._traffic = Traffic(self._sent_to, self._plan)
            self._traffic.start()
        self.look()

    def _follow(self, plan: TrafficPlan) -> None:
        """Go on with another plan."""
        self._plan = plan
        if self._traffic is not None:
            self._traffic.plan = plan
        self.look()

    def _adapters(self) -> tuple[str | None, ...]:
        service = self.bridge.service
        if self._mix == "active" or service is None:
            return (None,)
        if self._mix == "base":
            return (service.model.name,)
        ready = [v.name for v in self.bridge.adapters.views if v.status is AdapterStatus.READY]
        return (service.model.name, *ready)

    def action_more(self) -> None:
        self._follow(replace(self._plan, streams=min(MAX_STREAMS, self._plan.streams + 1)))

    def action_fewer(self) -> None:
        self._follow(replace(self._plan, streams=max(1, self._plan.streams - 1)))

    def action_mix(self) -> None:
        self._mix = _MIXES[(_MIXES.index(self._mix) + 1) % len(_MIXES)]
        self._follow(replace(self._plan, adapters=self._adapters()))

    def action_prompts(self) -> None:
        def answered(text: str | None) -> None:
            if text is None:
                return
            if not text.strip():
                self._source = f"{len(PROMPTS)} prompts of our own"
                self._follow(replace(self._plan, prompts=PROMPTS))
                return
            path = with_home(text.strip())
            try:
                prompts = read_prompts(path)
            except ConfigError as error:
                self.say(error.message, "error")
                return
            self._source = f"{len(prompts):,} prompts of {path.name}"
            self._follow(replace(self._plan, prompts=prompts))

        self.app.push_screen(
            AskText("Prompts", "A JSONL file with prompt or messages; empty for our own."), answered
        )

    def action_length(self) -> None:
        def answered(text: str | None) -> None:
            if text is None:
                return
            if not text.strip().isascii() or not text.strip().isdigit() or not int(text):
                self.say(f"A number of tokens from 1, not {text!r}.", "error")
                return
            self._follow(replace(self._plan, max_tokens=int(text)))

        self.app.push_screen(
            AskText("Longest answer", "In tokens.", str(self._plan.max_tokens)), answered
        )

"""What all screens share: the lines at top and foot, the size they need, and how they are fed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.notifications import SeverityLevel
from textual.screen import Screen
from textual.widget import Widget

from soup_tui.actions import APP, of_scope
from soup_tui.bridge import Bridge
from soup_tui.formatting import plain
from soup_tui.keymap import Preferences
from soup_tui.objective import ObjectiveWatch
from soup_tui.service import Ability
from soup_tui.terminal import MIN_HEIGHT, MIN_WIDTH, Terminal
from soup_tui.tight_compositor import TightCompositor
from soup_tui.widgets.key_line import KeyLine
from soup_tui.widgets.reading import Reading
from soup_tui.widgets.row_table import RowTable
from soup_tui.widgets.top_lines import ScreenTabs, StatusLine


@dataclass(frozen=True, slots=True)
class Bench:
    """What every screen is given.

    Attributes:
        change_pace: look more (below 0) or less often; the seconds between two looks.
    """

    bridge: Bridge
    terminal: Terminal
    preferences: Preferences
    watch: ObjectiveWatch
    change_pace: Callable[[int], float]


class WorkbenchScreen(Screen[None]):
    """A screen with a digit. Subclasses fill ``compose_body`` and ``look``."""

    NAME: ClassVar[str] = ""
    FILTERS: ClassVar[bool] = False
    """Whether there is a list to filter."""
    AUTO_FOCUS = ""  # else the keys would write into a text after each dialog
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]  # noqa: RUF012 as Textual has it

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "release_keys", "Leave the text", show=False)
    ]

    def __init__(self, bench: Bench) -> None:
        super().__init__(name=self.NAME)
        self._compositor = TightCompositor()
        self.bench = bench
        self.bridge = bench.bridge
        self.glyphs = bench.terminal.glyphs
        self._filter = ""
        self._status = StatusLine(self.glyphs)
        self._too_small = Reading(id="too-small")
        self._keys = KeyLine(self.footer_keys(), self._app_keys())

    def compose(self) -> ComposeResult:
        yield ScreenTabs(self.NAME)
        yield self._status
        with Vertical(id="body"):
            yield from self.compose_body()
        yield self._keys
        yield self._too_small

    def compose_body(self) -> Iterable[Widget]:
        """What stands between the lines at top and foot."""
        return ()

    def look(self) -> None:
        """Show what the bridge has now; called once for each look, and when the screen comes
        up."""

    def copied(self) -> str:
        """What ``y`` copies: empty for nothing."""
        return ""

    def filter_with(self, text: str) -> None:
        """Show only what has ``text`` in it."""
        self._filter = text.strip()
        self.look()

    @property
    def filter_text(self) -> str:
        """What is filtered with now."""
        return self._filter

    def footer_keys(self) -> list[tuple[str, str]]:
        """Keys of the line at the foot: of what the service can do."""
        service = self.bridge.service
        missing = {} if service is None else service.missing
        return [
            (self.bench.preferences.key_name(action.id), action.short)
            for action in of_scope(self.NAME)
            if action.short and action.needs not in missing
        ]

    def show_keys(self, keys: Sequence[tuple[str, str]], *, typing: bool = False) -> None:
        """Change the line at the foot; while a text is typed, the keys of the application write,
        too."""
        self._keys.show(keys, () if typing else self._app_keys())

    def _app_keys(self) -> list[tuple[str, str]]:
        return [
            (self.bench.preferences.key_name(action.id), action.short)
            for action in of_scope(APP)
            if action.short
        ]

    def on_mount(self) -> None:
        self.show_status()
        self.look()
        self.focus_list()

    def on_screen_resume(self) -> None:
        self.show_status()
        # What fits depends on sizes, which are known after the layout.
        self.call_after_refresh(self.look)

    def on_resize(self, event: events.Resize) -> None:
        width, height = event.size
        small = width < MIN_WIDTH or height < MIN_HEIGHT
        self.set_class(small, "-small")
        if small:
            times = self.glyphs.times
            self._too_small.show(
                f"Soup needs {MIN_WIDTH} {times} {MIN_HEIGHT} characters;"
                f" this terminal has {width} {times} {height}."
            )
        self.call_after_refresh(self.look)

    def action_release_keys(self) -> None:
        """Give the keys back from a text that is being typed."""
        self.set_focus(None)
        self.focus_list()

    def focus_list(self) -> None:
        """Put the cursor into the list of the screen, where it has one."""
        if table := next(iter(self.query(RowTable)), None):
            table.focus()

    def refresh_keys(self) -> None:
        """The line at the foot says what can be done now."""
        self.show_keys(self.footer_keys())

    def show_status(self) -> None:
        """The line at the top, the same on every screen, and the keys at the foot."""
        self.refresh_keys()
        bridge, snapshot = self.bridge, self.bridge.snapshot
        if snapshot is None or bridge.service is None:
            share = "" if bridge.share is None else f" {bridge.share:.0%}"
            doing = bridge.stage or "nothing is served"
            self._status.show(bridge.state, f"{doing}{share}", "")
            return
        active = next((view.name for view in bridge.adapters.views if view.active), None)
        model = snapshot.model if active is None else f"{snapshot.model} + {active}"
        bullet = self.glyphs.bullet
        figures = (
            f"{snapshot.running} running {bullet} {snapshot.waiting} waiting"
            f" {bullet} {snapshot.tokens_per_s:,.1f} tok/s"
        )
        self._status.show(snapshot.state, model, figures)

    def refuse(self, ability: Ability) -> bool:
        """Whether the service cannot do something, or there is none; says so."""
        service = self.bridge.service
        if service is None:
            self.say("Nothing is served now.", "warning")
            return True
        reason = service.missing.get(ability)
        if reason is not None:
            self.say(reason, "warning")
        return reason is not None

    def say(self, sentence: str, severity: SeverityLevel = "information") -> None:
        """A sentence for some seconds, as plain text."""
        self.notify(plain(sentence), severity=severity, markup=False)

"""The terminal application."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable
from typing import ClassVar

from textual.app import App, SystemCommand
from textual.binding import BindingType
from textual.command import CommandPalette
from textual.screen import Screen
from textual.theme import BUILTIN_THEMES

import styles
from screens import WORKBENCH
from screens.dialogs import AskChoice, AskText, ShowText
from screens.frame import Bench, WorkbenchScreen
from screens.logs import LogsScreen
from screens.serving import ServingScreen
from soup_engine.errors import ConfigError
from soup_tui.actions import ACTIONS, APP, SCREENS, bindings
from soup_tui.bridge import (
    Bridge,
    CommandDone,
    CommandFailed,
    ServiceFailed,
    ServiceLoading,
    ServiceReady,
    ServiceStopped,
    ServiceWaking,
)
from soup_tui.formatting import plain
from soup_tui.help_text import help_text
from soup_tui.keymap import Preferences
from soup_tui.objective import ObjectiveWatch
from soup_tui.service import Ability, Leave, error_sentence
from soup_tui.terminal import AsciiOnly, Terminal
from soup_tui.theme import DARK, THEMES, variable_defaults
from soup_tui.widgets.top_lines import ScreenTabs

POLL_INTERVALS_S = (0.5, 1.0, 2.0, 5.0, 10.0)


class SoupApp(App[Leave]):
    """Shows what ``bridge`` opens and serves. ``run`` returns what is to become of the service,
    ``None`` when the user did not say.

    Raises:
        ConfigError: there is no theme of the name that the preferences give.
    """

    TITLE = "Soup"
    CSS_PATH: ClassVar[list[str]] = [  # type: ignore[assignment]
        str(styles.FOLDER / f"{name}.tcss") for name in ("base", *SCREENS)
    ]
    BINDINGS: ClassVar[list[BindingType]] = bindings(APP)
    ENABLE_COMMAND_PALETTE = False  # ours is an action like all others

    def __init__(
        self,
        bridge: Bridge,
        terminal: Terminal | None = None,
        preferences: Preferences | None = None,
    ) -> None:
        super().__init__()
        self.bridge = bridge
        self.terminal = terminal or Terminal()
        self.preferences = preferences or Preferences()
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = self._chosen_theme()
        self.set_keymap(dict(self.preferences.keys))
        if self.terminal.glyphs.name == "ascii":
            self._filters.append(AsciiOnly())
        if self.terminal.remote or not self.terminal.colour:
            self.animation_level = "none"
        self._watch = ObjectiveWatch(self.preferences.objective)
        self._bench = Bench(bridge, self.terminal, self.preferences, self._watch, self.change_pace)
        self._poll_interval_s = self.terminal.poll_interval_s

    def _chosen_theme(self) -> str:
        wanted = self.bridge.settings.theme or self.preferences.theme
        if wanted is None:
            return DARK.name
        if wanted not in self.available_themes:
            names = ", ".join(sorted(self.available_themes))
            raise ConfigError(f"There is no theme {wanted!r}; there are {names}.", param="theme")
        if not self.terminal.colour and BUILTIN_THEMES.get(wanted, DARK).ansi:
            # Without colour those of the terminal's own palette come out black on black.
            return DARK.name
        return wanted

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return variable_defaults(self.current_theme)

    async def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.exit)
        self.set_class(self.terminal.glyphs.name == "ascii", "-ascii")
        for screen in WORKBENCH:
            self.install_screen(screen(self._bench), screen.NAME)
        await self.push_screen(SCREENS[0])
        self.bridge.start(self)
        self._timer = self.set_interval(self._poll_interval_s, self._look)

    @property
    def workbench(self) -> WorkbenchScreen | None:
        """The screen with a digit that is up, also below a dialog."""
        found = [screen for screen in self.screen_stack if isinstance(screen, WorkbenchScreen)]
        return found[-1] if found else None

    def _look(self) -> None:
        self.bridge.look()
        alert = self._watch.newly_missed(self.bridge.snapshot, self.bridge.history)
        if alert is not None:
            self.bell()
            self.notify(alert, severity="warning", markup=False)
        self._show()

    def _show(self) -> None:
        if (screen := self.workbench) is not None and screen.is_mounted:
            screen.show_status()
            screen.look()

    @property
    def poll_interval_s(self) -> float:
        return self._poll_interval_s

    def change_pace(self, steps: int) -> float:
        """Look more (below 0) or less often; the seconds between two looks from now on."""
        nearest = min(POLL_INTERVALS_S, key=lambda known: abs(known - self._poll_interval_s))
        place = POLL_INTERVALS_S.index(nearest) + steps
        self._poll_interval_s = POLL_INTERVALS_S[min(len(POLL_INTERVALS_S) - 1, max(0, place))]
        self._timer.stop()
        self._timer = self.set_interval(self._poll_interval_s, self._look)
        return self._poll_interval_s

    def on_service_loading(self, message: ServiceLoading) -> None:
        self.bridge.take(message)
        self._show()

    def on_service_ready(self, message: ServiceReady) -> None:
        self.bridge.take(message)
        self._look()

    def on_service_failed(self, message: ServiceFailed) -> None:
        self.bridge.take(message)
        self._show()

    def on_service_stopped(self, message: ServiceStopped) -> None:
        self.bridge.take(message)
        self._show()

    def on_service_waking(self, message: ServiceWaking) -> None:
        self.bridge.take(message)
        self._look()

    def on_command_done(self, message: CommandDone) -> None:
        if message.sentence:
            self.notify(plain(message.sentence), markup=False)
        self._look()

    def on_command_failed(self, message: CommandFailed) -> None:
        self.notify(plain(message.sentence), severity="error", markup=False)
        self._look()

    def on_screen_tabs_chosen(self, message: ScreenTabs.Chosen) -> None:
        self.action_show(message.screen)

    def on_logs_screen_request_wanted(self, message: LogsScreen.RequestWanted) -> None:
        self.action_show(ServingScreen.NAME)
        screen = self.get_screen(ServingScreen.NAME, ServingScreen)
        if not screen.select_request(message.request_id):
            self.notify(
                plain(f"{message.request_id} is not in flight any more."),
                severity="warning",
                markup=False,
            )

    def action_show(self, name: str) -> None:
        """Go to a screen by its name."""
        if (here := self.workbench) is not None and name != here.NAME:
            self.switch_screen(name)

    def action_help(self) -> None:
        here = self.workbench
        scope = SCREENS[0] if here is None else here.NAME
        self.push_screen(ShowText("Keys", help_text(scope, self.preferences)))

    def action_palette(self) -> None:
        if not isinstance(self.screen, CommandPalette):
            self.push_screen(CommandPalette())

    def get_system_commands(
        self,
        screen: Screen[object],  # noqa: ARG002
    ) -> Iterable[SystemCommand]:
        """All actions, in place of Textual's own list."""
        for action in ACTIONS:
            key = self.preferences.key_name(action.id)
            scope = "" if action.scope == APP else f"{action.scope.title()}: "
            yield SystemCommand(
                f"{scope}{action.title}", f"key {key}", lambda action=action: self._run(action.id)
            )

    async def _run(self, action_id: str) -> None:
        """Do an action, on its own screen where it has one."""
        action = next(action for action in ACTIONS if action.id == action_id)
        if action.scope != APP:
            self.action_show(action.scope)
        await self.run_action(action.call, self if action.scope == APP else self.screen)

    def action_filter(self) -> None:
        screen = self.workbench
        if screen is None or not screen.FILTERS:
            self.notify("There is no list to filter on this screen.", severity="warning")
            return
        self.push_screen(
            AskText(
                "Filter", "Shows what has this text in it; nothing shows all.", screen.filter_text
            ),
            lambda text: None if text is None else screen.filter_with(text),
        )

    def action_copy(self) -> None:
        text = "" if self.workbench is None else self.workbench.copied()
        if text:
            self.copy_to_clipboard(text)
        self.notify("Copied." if text else "There is nothing selected to copy.")

    def action_theme(self) -> None:
        names = sorted(self.available_themes, key=lambda name: (not name.startswith("soup"), name))

        def choose(name: str | None) -> None:
            if name is not None:
                self.theme = name

        self.push_screen(
            AskChoice(
                "Theme",
                [(name, "", name) for name in names],
                self.terminal.glyphs,
                selected=self.theme,
            ),
            choose,
        )

    def action_leave(self) -> None:
        """Quit; with requests in flight ask what is to become of them."""
        service, count = self.bridge.service, self.bridge.requests_in_flight
        if service is None or Ability.STOP in service.missing:
            self.exit(Leave.SERVE if service is not None else Leave.STOP)
            return
        if not count:
            self.exit(Leave.DRAIN)
            return
        choices = [
            (Leave.DRAIN.name, "d", "drain: they may finish, then it stops"),
            (Leave.STOP.name, "s", "stop now: they end with an error"),
        ]
        reason = service.missing.get(Ability.SERVE_HEADLESS, "")
        if not reason:
            choices.append((Leave.SERVE.name, "l", "leave it serving without the application"))
        requests = "1 request is" if count == 1 else f"{count} requests are"
        self.push_screen(
            AskChoice(f"Quit: {requests} in flight", choices, self.terminal.glyphs, reason),
            lambda chosen: None if chosen is None else self.exit(Leave[chosen]),
        )

    def failure(self) -> str | None:
        """Why nothing is served, in a sentence."""
        return None if self.bridge.error is None else error_sentence(self.bridge.error)

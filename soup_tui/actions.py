"""Everything that can be done from the keyboard, in one table.

Bindings, the line of keys at the foot of each screen, the help screen and the command palette are
all made from it. A screen's handler of ``serving.abort`` is its method ``action_abort``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from textual.binding import Binding, BindingType

from soup_tui.service import Ability

SCREENS = ("serving", "latency", "adapters", "export", "drafts", "chat", "traffic", "logs")
"""In the order of their digits, from 1."""

APP = "app"


@dataclass(frozen=True, slots=True)
class Action:
    """Something that a key does.

    Attributes:
        id: scope and name. The scope is ``app`` or the screen that has it.
        title: what it does, in the imperative.
        short: the same for the line of keys; empty keeps it out of that line.
        key: as Textual names it, several separated by commas.
        argument: of the handler.
        needs: what the service must be able to do; where it is not, the line of keys is without.
    """

    id: str
    title: str
    short: str
    key: str
    argument: str = ""
    needs: Ability | None = None

    @property
    def scope(self) -> str:
        return self.id.partition(".")[0]

    @property
    def call(self) -> str:
        """The handler as Textual calls it from a binding."""
        name = self.id.partition(".")[2]
        if self.argument:
            name = name.partition("-")[0]
        prefix = "app." if self.scope == APP else ""
        return f"{prefix}{name}({self.argument!r})" if self.argument else f"{prefix}{name}"


ACTIONS: tuple[Action, ...] = (
    *(
        Action(f"app.show-{name}", f"Go to {name.title()}", "", str(number), name)
        for number, name in enumerate(SCREENS, start=1)
    ),
    Action("app.help", "Show all keys", "help", "question_mark"),
    Action("app.palette", "Find a command", "", "colon,ctrl+p"),
    Action("app.filter", "Filter what the screen shows", "", "slash"),
    Action("app.copy", "Copy what is selected", "", "y"),
    Action("app.theme", "Change the theme", "", "T"),
    Action("app.leave", "Quit", "quit", "q"),
    Action("serving.abort", "Abort the selected request", "abort", "x", needs=Ability.ABORT),
    Action("serving.restart", "Restart with other settings", "restart", "r", needs=Ability.RESTART),
    Action("serving.stop", "Stop serving", "stop", "s", needs=Ability.STOP),
    Action(
        "serving.sleep", "Put the engine to sleep, or wake it up", "sleep", "z", needs=Ability.SLEEP
    ),
    Action("serving.choose", "Choose a model to serve", "model", "m", needs=Ability.RESTART),
    Action("serving.demo", "Serve the demo model", "demo", "d", needs=Ability.RESTART),
    Action("latency.window", "Window: 1, 5 or 15 minutes", "window", "w"),
    Action("latency.measure", "Measure of the histogram", "measure", "m"),
    Action("latency.lower", "Show the histogram or why p95 is so", "why", "v"),
    Action("latency.objective", "Set the latency objective", "objective", "o"),
    Action("latency.alert", "Alert when the objective is missed", "alert", "a"),
    Action("latency.freeze", "Freeze the view", "freeze", "space"),
    Action("latency.faster", "Look more often", "", "plus,equals_sign"),
    Action("latency.slower", "Look less often", "", "minus"),
    Action(
        "adapters.activate",
        "Activate the selected adapter",
        "activate",
        "enter",
        needs=Ability.ADAPTERS,
    ),
    Action("adapters.base", "Return to the base model", "base", "0", needs=Ability.ADAPTERS),
    Action("adapters.load", "Load an adapter", "load", "a", needs=Ability.ADAPTERS),
    Action(
        "adapters.reload", "Load the selected adapter again", "reload", "r", needs=Ability.ADAPTERS
    ),
    Action("adapters.unload", "Unload the selected adapter", "unload", "x", needs=Ability.ADAPTERS),
    Action("adapters.mark", "Mark for comparing", "mark", "space"),
    Action("adapters.compare", "Compare the marked ones", "compare", "c"),
    Action("export.start", "Export a model or an adapter", "export", "e", needs=Ability.EXPORTS),
    Action("export.cancel", "Cancel the selected export", "cancel", "x", needs=Ability.EXPORTS),
    Action("export.report", "Show all of the selected export", "report", "enter"),
    Action("export.verify", "Compare new ones with their source or not", "verify", "v"),
    Action(
        "drafts.switch",
        "Choose what drafts tokens, or nothing",
        "drafts",
        "d",
        needs=Ability.DRAFTS,
    ),
    Action("chat.send", "Send", "send", "enter"),
    Action("chat.type", "Type a message", "type", "i"),
    Action("chat.adapter", "Choose who answers", "adapter", "a"),
    Action("chat.settings", "Sampling settings and system prompt", "settings", "s"),
    Action("chat.regenerate", "Answer again", "regenerate", "r"),
    Action("chat.edit", "Edit the last message", "edit", "e"),
    Action("chat.stop", "Stop the answer", "", "x"),
    Action("chat.save", "Save as JSONL", "save", "w"),
    Action("chat.clear", "Begin anew", "new", "n"),
    Action("traffic.switch", "Start or stop the traffic", "start/stop", "g"),
    Action("traffic.more", "One stream more", "more", "plus,equals_sign"),
    Action("traffic.fewer", "One stream fewer", "fewer", "minus"),
    Action("traffic.mix", "Adapters: base, active or all", "adapters", "a"),
    Action("traffic.prompts", "Take the prompts of a JSONL file", "prompts", "p"),
    Action("traffic.length", "Longest answer", "length", "l"),
    Action("logs.level", "Least level shown", "level", "l"),
    Action("logs.follow", "Follow the newest", "follow", "f"),
    Action("logs.request", "Show the request", "request", "enter"),
)

BY_ID = {action.id: action for action in ACTIONS}


def of_scope(scope: str) -> Iterator[Action]:
    return (action for action in ACTIONS if action.scope == scope)


def bindings(scope: str) -> list[BindingType]:
    """What Textual binds for the application or a screen."""
    return [
        Binding(action.key, action.call, action.title, show=bool(action.short), id=action.id)
        for action in of_scope(scope)
    ]


_KEY_NAMES = {
    "question_mark": "?",
    "colon": ":",
    "slash": "/",
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "full_stop": ".",
    "comma": ",",
    "enter": "enter",
    "escape": "esc",
}


def key_name(keys: str) -> str:
    """How the first of the keys of an action is written for people."""
    first = keys.partition(",")[0]
    return _KEY_NAMES.get(first, first.replace("ctrl+", "^"))

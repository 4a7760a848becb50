"""The user's own settings of the application: theme, characters, keys, latency objective.

::

    # tui.toml
    theme = "soup-light"
    glyphs = "block"

    [keys]
    "serving.abort" = "k"

    [objective]
    measure = "ttft"
    seconds = 0.5
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from soup_engine.errors import ConfigError
from soup_tui.actions import ACTIONS, APP, BY_ID, SCREENS, key_name
from soup_tui.formatting import LATENCY_MEASURES
from soup_tui.glyphs import GLYPHS


@dataclass(frozen=True, slots=True)
class Objective:
    """A latency that requests should stay within (SLO)."""

    measure: str = "ttft"
    seconds: float = 1.0
    alert: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Preferences:
    """What stands in the user's file; the defaults where it says nothing.

    Attributes:
        glyphs: name of a set of characters; by default the best that the terminal has.
        keys: keys of actions, by id, where they differ from the table.
    """

    theme: str | None = None
    glyphs: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    objective: Objective = field(default_factory=Objective)

    def key(self, action_id: str) -> str:
        """Keys of an action as Textual names them."""
        return self.keys.get(action_id, BY_ID[action_id].key)

    def key_name(self, action_id: str) -> str:
        return key_name(self.key(action_id))


def preferences_path() -> Path:
    return user_config_path("soup", appauthor=False) / "tui.toml"


def load_preferences(path: Path) -> Preferences:
    """Of a file; the defaults where there is none.

    Raises:
        ConfigError: one sentence that says what is wrong in it and what would work.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Preferences()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}.") from error
    try:
        return _preferences(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}") from None


def _preferences(values: dict[str, Any]) -> Preferences:
    known = ("theme", "glyphs", "keys", "objective")
    for name in values:
        if name not in known:
            raise ConfigError(f"there is no setting {name!r}; there are {', '.join(known)}.")
    theme, glyphs = values.get("theme"), values.get("glyphs")
    if theme is not None and not isinstance(theme, str):
        raise ConfigError("theme is the name of a theme.")
    if glyphs is not None and glyphs not in GLYPHS:
        raise ConfigError(f"glyphs is one of {', '.join(GLYPHS)}, not {glyphs!r}.")
    return Preferences(
        theme=theme,
        glyphs=glyphs,
        keys=_keys(values.get("keys", {})),
        objective=_objective(values.get("objective", {})),
    )


def _keys(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        raise ConfigError('keys is a table such as [keys] with lines such as "app.leave" = "Q".')
    for action_id, key in values.items():
        if action_id not in BY_ID:
            raise ConfigError(f"there is no action {action_id!r}; the help screen names them all.")
        if not isinstance(key, str) or not key.strip():
            raise ConfigError(f"the key of {action_id} is a text such as 'k' or 'ctrl+k'.")
    for scope in SCREENS:
        _check_unique(scope, values)
    return dict(values)


def _check_unique(scope: str, changed: Mapping[str, str]) -> None:
    """Refuse a key that means two things on one screen."""
    meant = [
        (key.strip(), action.id)
        for action in ACTIONS
        if action.scope in (APP, scope)
        for key in changed.get(action.id, action.key).split(",")
    ]
    counts = Counter(key for key, _ in meant)
    for key, count in counts.items():
        if count > 1:
            first, second = [action_id for found, action_id in meant if found == key][:2]
            raise ConfigError(f"the key {key!r} is given to both {first} and {second}.")


def _objective(values: Any) -> Objective:
    allowed = {"measure", "seconds", "alert"}
    if not isinstance(values, dict) or not set(values) <= allowed:
        raise ConfigError("objective is a table with measure, seconds and alert.")
    measure = values.get("measure", Objective().measure)
    if measure not in LATENCY_MEASURES:
        raise ConfigError(
            f"objective.measure is one of {', '.join(LATENCY_MEASURES)}, not {measure!r}."
        )
    seconds = values.get("seconds", Objective().seconds)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e6:
        raise ConfigError("objective.seconds is a number above 0.")
    alert = values.get("alert", False)
    if not isinstance(alert, bool):
        raise ConfigError("objective.alert is true or false.")
    return Objective(measure, float(seconds), alert)

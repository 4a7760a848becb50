"""Where the values of the settings come from: options, environment, file."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soup_engine.errors import ConfigError
from soup_tui.config import WITH_ATTACH, Settings, table
from soup_tui.setting import Setting

ENVIRONMENT_PREFIX = "SOUP_"
CONFIG_VARIABLE = "SOUP_CONFIG"
URL_VARIABLE = "SOUP_URL"
"""Where ``soup adapters`` finds the server."""
DEBUG_VARIABLE = "SOUP_DEBUG"
"""Set to anything: an unexpected error shows its traceback."""

_TABLE = dict(table())


@dataclass(frozen=True, slots=True)
class _Given:
    """A value, who gave it (for messages), and how much that counts."""

    value: Any
    label: str
    rank: int


def resolve(
    options: Mapping[str, object],
    environment: Mapping[str, str],
    config_file: Path | None = None,
) -> Settings:
    """Settings from command-line options over ``SOUP_…`` variables over a TOML file.

    Args:
        options: values by the setting's name; ``None`` where the option was not given.
        environment: all variables of the process. An empty ``SOUP_…`` variable counts as unset.
        config_file: overrides the file that ``SOUP_CONFIG`` names.

    Raises:
        ConfigError: names the option, variable or file and key, and what would work.
    """
    if config_file is None and environment.get(CONFIG_VARIABLE):
        config_file = Path(environment[CONFIG_VARIABLE])
    given: dict[str, _Given] = {}
    if config_file is not None:
        for name, (label, value) in _read_file(config_file).items():
            given[name] = _Given(_from_toml(_TABLE[name], label, value), label, 0)
    for name, (label, text) in _read_environment(environment).items():
        given[name] = _Given(_converted(_TABLE[name], label, text), label, 1)
    for name, value in options.items():
        if value is not None and value != []:
            label = option_name(name)
            given[name] = _Given(_converted(_TABLE[name], label, value), label, 2)
    _choose_between(given, "demo", "model")
    _choose_between(given, "uds", "host")
    _choose_between(given, "uds", "port")
    for name in _TABLE:
        if name not in WITH_ATTACH:
            _choose_between(given, "attach", name)
    return Settings(**{name: entry.value for name, entry in given.items()})


def option_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable_name(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _read_file(path: Path) -> dict[str, tuple[str, object]]:
    """Label and value of every key of the file, by the setting's name."""
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(f"Cannot read {path}: {reason}.", param="config") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}.", param="config") from error
    found: dict[str, tuple[str, object]] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in _TABLE:
            raise ConfigError(f"{path}: unknown key {key!r}; {_suggestion(name)}", param=key)
        if name in found:
            raise ConfigError(f"{path}: {key!r} is given twice.", param=key)
        found[name] = (f"{path}: {key}", value)
    return found


def _suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, _TABLE, n=1)
    if close:
        return f"did you mean {close[0].replace('_', '-')!r}?"
    return f"known keys are {', '.join(known.replace('_', '-') for known in _TABLE)}."


def _read_environment(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Label and text of every variable that sets something, by the setting's name."""
    return {
        name: (variable_name(name), environment[variable_name(name)])
        for name in _TABLE
        if environment.get(variable_name(name))
    }


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each ``SOUP_…`` variable that sets nothing: most likely it is misspelt."""
    known = {CONFIG_VARIABLE, URL_VARIABLE, DEBUG_VARIABLE, *map(variable_name, _TABLE)}
    sentences = []
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            closest = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {closest[0]}?" if closest else "."
            sentences.append(f"The variable {name} sets nothing{hint}")
    return sentences


def _from_toml(setting: Setting, label: str, value: object) -> Any:
    # By ``type``: TOML's true is no number, though Python's bool is an int.
    if type(value) not in setting.kind.toml_types:
        raise _wrong_value(setting, label, value)
    return _converted(setting, label, value)


def _converted(setting: Setting, label: str, value: object) -> Any:
    try:
        return setting.convert(value)
    except ValueError:
        raise _wrong_value(setting, label, value) from None


def _wrong_value(setting: Setting, label: str, value: object) -> ConfigError:
    shown = "" if setting.secret else f", not {value!r}"
    return ConfigError(f"{label} must be {setting.expected}{shown}.")


def _choose_between(given: dict[str, _Given], first: str, second: str) -> None:
    """Two settings that exclude each other: the one from the stronger source stays.

    Raises:
        ConfigError: both come from the same source.
    """
    one, other = given.get(first), given.get(second)
    if one is None or other is None or one.value is False:
        return
    if one.rank == other.rank:
        raise ConfigError(
            f"{one.label} and {other.label} exclude each other: give one of them.", param=first
        )
    del given[first if one.rank < other.rank else second]

"""Command-line options from the table of settings."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from soup_tui.config import Settings, table
from soup_tui.config_sources import option_name, resolve, unknown_variables
from soup_tui.setting import BOOLEAN, SIZE, Setting


def settings_command(name: str, run: Callable[[Settings], int]) -> Callable[..., int]:
    """A function for Typer that has one option for each setting of the command ``name``.

    Options take text whatever their type: all sources of a setting share one way of reading
    values and one way of refusing them.
    """

    def command(**options: Any) -> int:
        config_file: Path | None = options.pop("config")
        settings = resolve(options, os.environ, config_file)
        for variable in unknown_variables(os.environ):
            print(f"soup: the variable {variable} sets nothing.", file=sys.stderr)
        return run(settings)

    parameters = [_parameter(key, about) for key, about in table() if name in about.commands]
    parameters.append(_CONFIG_PARAMETER)
    # Typer reads both.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    command.__doc__ = run.__doc__
    return command


def _parameter(name: str, setting: Setting) -> inspect.Parameter:
    if setting.kind is BOOLEAN:
        flag = option_name(name)
        option = typer.Option(
            f"{flag}/--no-{flag.removeprefix('--')}", help=help_text(name, setting)
        )
        annotation: Any = Annotated[bool | None, option]
    else:
        declarations = [option_name(name), *([setting.short] if setting.short else [])]
        option = typer.Option(
            *declarations,
            metavar=setting.metavar or setting.kind.metavar,
            help=help_text(name, setting),
        )
        annotation = Annotated[str | None, option]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


_CONFIG_PARAMETER = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="TOML file with any of these options as keys; the environment wins over it,"
            " options win over both.",
        ),
    ],
)


def help_text(name: str, setting: Setting) -> str:
    """What ``--help`` says of a setting, its default included."""
    default = default_text(name, setting)
    return f"{setting.help} [default: {default}]" if default else setting.help


def default_text(name: str, setting: Setting) -> str:
    """The default in words; empty where there is none."""
    if setting.default_text is not None:
        return setting.default_text
    (found,) = (item.default for item in dataclasses.fields(Settings) if item.name == name)
    if found is None or setting.kind is SIZE:
        return ""
    if setting.kind is BOOLEAN:
        return "on" if found else "off"
    return f"{found:g}" if isinstance(found, float) else str(found)

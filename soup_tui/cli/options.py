"""Command-line options from the table of settings."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any

import typer

from soup_tui.config import ANY_RUNNING, Settings, table
from soup_tui.config_sources import option_name, resolve
from soup_tui.setting import BOOLEAN, SIZE, Setting

_ATTACH = option_name("attach")


def _print_help(context: typer.Context, asked: bool) -> None:
    if asked:
        typer.echo(context.get_help())
        raise typer.Exit


# Typer's own flag, when it is not given, costs an import of pydantic: half of the time that
# "soup serve --help" may take. This one, with a default, does not.
HelpOption = Annotated[
    bool,
    typer.Option("--help", "-h", callback=_print_help, is_eager=True, help="Show this message."),
]


def given_path(text: str) -> Path:
    """The path of an option, for ``typer.Option(parser=…)``: an empty one would be this folder."""
    if not text.strip():
        raise typer.BadParameter("a path cannot be empty.")
    return Path(text)


def show_help_without_command(context: typer.Context) -> None:
    """For the callback of a group of commands."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def settings_command(name: str, run: Callable[[Settings], int]) -> Callable[..., int]:
    """A function for Typer that has one option for each setting of the command ``name``.

    Options take text whatever their type: all sources of a setting share one way of reading
    values and one way of refusing them.
    """

    def command(**options: Any) -> int:
        config_file: Path | None = options.pop("config")
        settings = resolve(options, os.environ, config_file)
        return run(settings)

    parameters = [_parameter(key, about) for key, about in table() if name in about.commands]
    parameters.append(_CONFIG_PARAMETER)
    # Typer reads both.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters}
    command.__doc__ = run.__doc__
    return command


def spread(arguments: Sequence[str]) -> list[str]:
    """``--adapters a=1 b=2`` as ``--adapters a=1 --adapters b=2``, and ``--attach`` without an
    address as ``--attach=any``: Typer's options take one value each."""
    spreading = {option_name(name) for name, setting in table() if setting.kind.many}
    spread_out: list[str] = []
    option = ""
    given = False
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue="-"):
        if argument == _ATTACH and following.startswith("-"):
            argument = f"{_ATTACH}={ANY_RUNNING}"
        if argument.startswith("-"):
            option = argument.partition("=")[0]
            given = "=" in argument
        elif option in spreading and given:
            spread_out.append(option)
        else:
            given = True
        spread_out.append(argument)
    return spread_out


def _parameter(name: str, setting: Setting) -> inspect.Parameter:
    if setting.kind is BOOLEAN:
        flag = option_name(name)
        option = typer.Option(
            f"{flag}/--no-{flag.removeprefix('--')}", help=help_text(name, setting)
        )
        annotation: Any = Annotated[bool | None, option]
    else:
        others = (setting.also, setting.short)
        declarations = [option_name(name), *(other for other in others if other)]
        option = typer.Option(
            *declarations,
            metavar=setting.metavar or setting.kind.metavar,
            help=help_text(name, setting),
        )
        annotation = Annotated[list[str] | None if setting.kind.many else str | None, option]
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
    if found is None or setting.kind is SIZE or setting.kind.many:
        return ""
    if setting.kind is BOOLEAN:
        return "on" if found else "off"
    return f"{found:g}" if isinstance(found, float) else str(found)
